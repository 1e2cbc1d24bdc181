"""Trains a language model of KerasHub on packed text: all its weights, or LoRA's.

Pack text with `python examples/language_model/pack.py BUCKET FILES`, then run this script

- alone: `python examples/language_model/train.py --data BUCKET`;
- in several processes: the same in each with `--strategy multi_worker` or `sharded`, and TF_CONFIG set;
- as a managed job: see README.md.
"""

import argparse
import logging
import math
import sys

import numpy as np
from language import STRATEGIES, build_model, check_model, generate, load_tokenizer, make_strategy, save_tokenizer

from lockstep.data import Batches, RecordSource, find_shards, parse_batch, read_manifest
from lockstep.errors import LockstepError
from lockstep.storage import join_url
from lockstep.strategies import describe_memory
from lockstep.topology import Outputs, Topology
from lockstep.training import BackupAndRestore, Progress, TensorBoard, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a language model of KerasHub on packed text.")
    parser.add_argument("--data", help="bucket with packed text; without it, random tokens, to plan with")
    parser.add_argument("--name", default="text", help="the name of the data set")
    parser.add_argument("--size", default="tiny", help="the shape of a model with random weights: see language.py")
    parser.add_argument("--preset", help="a KerasHub preset to start from, such as gemma3_1b")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train LoRA's matrices alone")
    parser.add_argument("--strategy", choices=STRATEGIES, default="auto")
    parser.add_argument("--model-parallel", type=int, default=2, help="devices that share a layer (model_parallel)")
    parser.add_argument("--dtype", default="float32", help="a dtype policy, such as mixed_bfloat16 or bfloat16")
    parser.add_argument("--remat", action="store_true", help="compute activations twice instead of keeping them")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences of a step, over all replicas")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a random sequence, without --data")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--save-freq", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--prompt", default="The ", help="a text that the trained model continues")
    parser.add_argument("--num-tokens", type=int, default=40, help="how many tokens it adds")
    parser.add_argument("--job-dir", help="bucket for model, checkpoints and logs; a job has its own")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def output_urls(job_dir):
    """Returns where results go: what the job says, then folders of --job-dir, then nowhere."""
    outputs = Topology.from_env().outputs
    if not job_dir:
        return outputs
    return Outputs(
        model_dir=outputs.model_dir or join_url(job_dir, "model"),
        checkpoint_dir=outputs.checkpoint_dir or join_url(job_dir, "checkpoints"),
        tensorboard_dir=outputs.tensorboard_dir or join_url(job_dir, "logs"),
    )


def to_example(tokens):
    """Returns what the model reads and what it predicts, from sequences of one token more."""
    inputs = np.ascontiguousarray(tokens[:, :-1])
    return {"token_ids": inputs, "padding_mask": np.ones_like(inputs)}, np.ascontiguousarray(tokens[:, 1:])


def make_batches(arguments, split, *, strategy, seed=None):
    """Returns the batches of a split, or None if it was not packed."""
    files = join_url(arguments.data, f"{arguments.name}-{split}-*.tfrec")
    if split == "test" and not find_shards(files):
        return None
    manifest = read_manifest(arguments.data, name=arguments.name, split=split)
    features = {"tokens": manifest.features["tokens"]}
    return Batches(
        RecordSource(files),
        batch_size=arguments.batch_size,
        transform=lambda records: to_example(parse_batch(records, features)["tokens"]),
        seed=seed,
        input_context=strategy.input_context,
    )


def train(arguments):
    check_model(size=arguments.size, preset=arguments.preset)
    named = arguments.preset or arguments.size
    strategy = make_strategy(arguments.strategy, model=named, model_parallel=arguments.model_parallel)
    keras.utils.set_random_seed(arguments.seed)
    outputs = output_urls(arguments.job_dir)
    with strategy.scope():
        model = build_model(
            size=arguments.size,
            preset=arguments.preset,
            lora_rank=arguments.lora,
            learning_rate=arguments.learning_rate,
            dtype=arguments.dtype,
            remat=arguments.remat,
        )
    if arguments.data is None:
        tokens = np.zeros((arguments.batch_size, arguments.length + 1), np.int32)
        model.fit(*to_example(tokens), batch_size=arguments.batch_size, shuffle=False, verbose=0)
        return
    train_batches = make_batches(arguments, "train", strategy=strategy, seed=arguments.seed)
    test_batches = make_batches(arguments, "test", strategy=strategy)

    callbacks = [Progress()]
    if outputs.checkpoint_dir:
        callbacks.append(BackupAndRestore(outputs.checkpoint_dir, save_freq=arguments.save_freq))
    if outputs.tensorboard_dir:
        callbacks.append(TensorBoard(outputs.tensorboard_dir))
    model.fit(train_batches, epochs=arguments.epochs, callbacks=callbacks, verbose=0)

    if strategy.is_chief:
        print(describe_memory(model).partition("whole on")[0].rstrip())
    if test_batches is not None:
        loss = model.evaluate(test_batches, verbose=0)
        if strategy.is_chief:
            print(f"test loss {loss:.5f}, perplexity {math.exp(loss):.3f}")
    with strategy.scope():
        text = generate(model, load_tokenizer(arguments.preset), arguments.prompt, num_tokens=arguments.num_tokens)
    saved = save_model(model, outputs.model_dir) if outputs.model_dir else "nowhere: name a --job-dir to keep it"
    if strategy.is_chief:
        if outputs.model_dir:
            save_tokenizer(arguments.preset, outputs.model_dir)
        print(f"generated: {arguments.prompt}{text}")
        print(f"model saved: {saved}")


def main():
    # Keras has set up logging when it was imported; a job's log wants plain lines.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout, force=True)
    logging.getLogger("lockstep").setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Grain advises KerasHub on a read-ahead that is not used here
    arguments = parse_arguments()
    try:
        train(arguments)
    except LockstepError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
