"""The parts that packing, training and serving share: tokens, models, and how a strategy divides them."""

import json
import os

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.storage import open_bucket
from lockstep.strategies import ShardedStrategy, from_env

# isort: split
import keras  # after lockstep, which has it run on JAX
import keras_hub

TOKENIZER_FILE = "tokenizer.json"
"""The file beside the model that says which tokenizer its tokens come from."""

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "sharded", "model_parallel")

GEMMA_2B = {
    "num_layers": 18,
    "num_query_heads": 8,
    "num_key_value_heads": 1,
    "hidden_dim": 2048,
    "intermediate_dim": 32768,
    "head_dim": 256,
}
GEMMA3_1B = {
    "num_layers": 26,
    "num_query_heads": 4,
    "num_key_value_heads": 1,
    "hidden_dim": 1152,
    "intermediate_dim": 13824,
    "head_dim": 256,
    "image_size": None,
    "use_sliding_window_attention": True,
    "sliding_window_size": 512,
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
}
LLAMA3_8B = {
    "num_layers": 32,
    "num_query_heads": 32,
    "num_key_value_heads": 8,
    "hidden_dim": 4096,
    "intermediate_dim": 14336,
    "rope_max_wavelength": 500000,
}
TINY = {
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 64,
    "intermediate_dim": 128,
    "head_dim": 16,
}
SIZES = {
    "tiny": (keras_hub.models.GemmaBackbone, {**TINY, "vocabulary_size": 264}),
    "gemma_2b": (keras_hub.models.GemmaBackbone, {**GEMMA_2B, "vocabulary_size": 256000}),
    "gemma3_1b": (keras_hub.models.Gemma3Backbone, {**GEMMA3_1B, "vocabulary_size": 262144}),
    "llama3_8b": (keras_hub.models.Llama3Backbone, {**LLAMA3_8B, "vocabulary_size": 128256}),
}
"""Shapes by name. They are made with random weights; a preset has trained ones."""


class ByteTokenizer:
    """Tokens that are the bytes of a text in UTF-8, behind three special ones. It needs no file."""

    num_special, start_token_id, end_token_id = 3, 1, 2  # 0 pads

    def tokenize(self, text):
        return [byte + self.num_special for byte in text.encode("utf-8")]

    def detokenize(self, tokens):
        kept = [token - self.num_special for token in tokens]
        return bytes(byte for byte in kept if 0 <= byte < 256).decode("utf-8", errors="replace")


def load_tokenizer(preset):
    """Returns a preset's tokenizer, or the one of bytes. Those of SentencePiece (Gemma) need no TensorFlow."""
    return keras_hub.models.Tokenizer.from_preset(preset) if preset else ByteTokenizer()


def save_tokenizer(preset, url):
    """Writes the name of the tokenizer into the folder of the model."""
    open_bucket(url).write(TOKENIZER_FILE, json.dumps({"preset": preset}).encode())


def load_saved_tokenizer(folder):
    with open(os.path.join(folder, TOKENIZER_FILE)) as file:
        return load_tokenizer(json.load(file)["preset"])


def make_strategy(name, *, model, model_parallel):
    """Returns the strategy for a flag.

    Args:
        name: one of STRATEGIES. "sharded" divides the state of training over all devices. "model_parallel" also divides
            each layer over neighboring devices, as the model's own layout map says.
        model: the name of a size or of a preset.
        model_parallel: over how many devices a layer is divided.
    """
    if name == "sharded":
        return ShardedStrategy(stage=3)
    if name == "model_parallel":
        # Gemma 3 publishes no map. Its layers are called like Gemma's.
        published = (
            keras_hub.models.GemmaBackbone if "gemma" in model or model == "tiny" else keras_hub.models.LlamaBackbone
        )
        return ShardedStrategy(stage=3, model_parallel=model_parallel, layout_map=published.get_layout_map)
    return from_env(name)


def build_model(*, size, preset, lora_rank, learning_rate, dtype, remat):
    """Builds and compiles a causal language model in the current scope.

    Args:
        size: a name of SIZES; ignored with a preset.
        preset: the name of a KerasHub preset, whose weights are loaded; or None.
        lora_rank: the rank of the matrices that are trained beside frozen weights; 0 trains all weights.
        learning_rate: Adam's.
        dtype: a dtype policy, such as "mixed_bfloat16".
        remat: whether activations are computed again for the gradients, which takes time and saves memory.
    """
    with keras.RematScope(mode="full" if remat else None):
        if preset:
            model = keras_hub.models.CausalLM.from_preset(preset, preprocessor=None, dtype=dtype)
        else:
            backbone_class, shape = SIZES[size]
            backbone = backbone_class(**shape, dtype=dtype)
            task = {
                keras_hub.models.GemmaBackbone: keras_hub.models.GemmaCausalLM,
                keras_hub.models.Gemma3Backbone: keras_hub.models.Gemma3CausalLM,
                keras_hub.models.Llama3Backbone: keras_hub.models.Llama3CausalLM,
            }[backbone_class]
            model = task(backbone, preprocessor=None)
    if lora_rank:
        model.backbone.enable_lora(lora_rank)
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        sampler="greedy",
    )
    return model


def generate(model, tokenizer, prompt, *, num_tokens):
    """Returns a prompt's continuation, of so many tokens at most.

    Args:
        model: a `CausalLM` without a preprocessor.
        tokenizer: its tokenizer.
        prompt: the text to continue.
        num_tokens: how many tokens to add at most. Another number compiles the model anew.
    """
    tokens = [tokenizer.start_token_id, *(int(token) for token in tokenizer.tokenize(prompt))]
    length = -(-(len(tokens) + num_tokens) // 64) * 64  # of few lengths, because each one is compiled
    token_ids = np.zeros((1, length), np.int32)
    token_ids[0, : len(tokens)] = tokens
    padding_mask = np.arange(length)[None] < len(tokens)
    outputs = model.generate(
        {"token_ids": token_ids, "padding_mask": padding_mask}, stop_token_ids=(tokenizer.end_token_id,)
    )
    new = [int(token) for token in np.asarray(outputs["token_ids"])[0, len(tokens) : len(tokens) + num_tokens]]
    if tokenizer.end_token_id in new:
        new = new[: new.index(tokenizer.end_token_id)]
    return tokenizer.detokenize(new)


def check_model(*, size, preset):
    """Refuses a size that does not exist."""
    if not preset and size not in SIZES:
        raise InvalidInputError("--size", received=size, allowed=", ".join(SIZES))
