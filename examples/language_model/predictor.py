"""Answers requests of text with text: `{"instances": ["The cat"]}` gives `{"predictions": ["The cat sat on ..."]}`."""

from language import generate, load_saved_tokenizer

from lockstep.training import load_model


class Predictor:
    def __init__(self, model, tokenizer):
        self.model = model
        self.tokenizer = tokenizer

    @classmethod
    def from_path(cls, model_dir):
        predictor = cls(load_model(model_dir), load_saved_tokenizer(model_dir))
        predictor.predict(["warm-up"])  # compiles, before the version is READY
        return predictor

    def predict(self, instances, *, num_tokens=40):
        """Continues each text.

        Args:
            instances: texts.
            num_tokens: how many tokens to add at most.
        """
        wrong = [instance for instance in instances if not isinstance(instance, str)]
        if wrong:
            raise ValueError(f"an instance is a text; received {wrong[0]!r:.80}")
        if type(num_tokens) is not int or not 1 <= num_tokens <= 1024:
            raise ValueError(f"num_tokens is a whole number from 1 to 1024; received {num_tokens!r}")
        return [text + generate(self.model, self.tokenizer, text, num_tokens=num_tokens) for text in instances]
