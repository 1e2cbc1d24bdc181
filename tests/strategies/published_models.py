"""Published architectures of KerasHub at tiny sizes, which every strategy has to train as one device does.

`MODELS` has them by name. Each is made with random weights, in the current scope, and comes with inputs of any number
of rows. None needs TensorFlow: only KerasHub's tokenizers and preprocessors do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import keras_hub
import numpy as np
from keras_hub import models as hub
from keras_hub.src.models.vae.vae_backbone import VAEBackbone  # which has no public name: it is a part of others

VOCABULARY = 32
LENGTH = 6
IMAGE = (32, 32, 3)


@dataclass(frozen=True, kw_only=True)
class Published:
    """An architecture.

    Attributes:
        kind: what it computes on, for the table in the documentation.
        make: returns the model, in the current scope.
        inputs: returns the model's inputs, for a number of rows and a generator of random numbers.
        layout_map: what divides its variables over a model axis: a function that KerasHub publishes, or patterns.
        most: how far an update may be from one device's, by their norms.
        batch_statistics: whether it normalises over the batch, so that rounding in what comes before is noise.
    """

    kind: str
    make: Callable[[], Any]
    inputs: Callable[[int, np.random.Generator], Any]
    layout_map: Mapping[str, Any] | Callable[[Any], Any] | None = None
    most: float = 1e-3
    batch_statistics: bool = False


def images(num_rows: int, generator: np.random.Generator) -> np.ndarray:
    return generator.normal(size=(num_rows, *IMAGE)).astype(np.float32)


def ids(num_rows: int, generator: np.random.Generator) -> np.ndarray:
    return generator.integers(1, VOCABULARY, (num_rows, LENGTH)).astype(np.int32)


def mask(num_rows: int, generator: np.random.Generator) -> np.ndarray:
    """Rows of several lengths."""
    lengths = generator.integers(2, LENGTH + 1, (num_rows, 1))
    return (np.arange(LENGTH) < lengths).astype(np.int32)


def text(num_rows, generator):
    return {"token_ids": ids(num_rows, generator), "padding_mask": mask(num_rows, generator)}


def text_of_segments(num_rows, generator):
    segments = generator.integers(0, 2, (num_rows, LENGTH)).astype(np.int32)
    return {**text(num_rows, generator), "segment_ids": segments}


def two_texts(num_rows, generator):
    return {
        f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in text(num_rows, generator).items()
    }


ENCODER = {"vocabulary_size": VOCABULARY, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
DECODER = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}
SHORT = {"max_sequence_length": LENGTH}

ATTENTION = {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*attention_output.*/kernel": ("model", None, None),
}
"""Of the encoders: each device has some of the heads, and of the units between two layers."""
BERT_MAP = {
    **ATTENTION,
    ".*feedforward_intermediate_dense/kernel": (None, "model"),
    ".*feedforward_output_dense/kernel": ("model", None),
}
GEMMA_MAP = {
    "token_embedding/embeddings": ("model", None),
    ".*attention/(query|key|value)/kernel": ("model", None, None),
    ".*attention_output/kernel": ("model", None, None),
    ".*(ffw_gating|ffw_gating_2)/kernel": (None, "model"),
    ".*ffw_linear/kernel": ("model", None),
}
LLAMA_MAP = {
    "token_embedding/embeddings": ("model", None),
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*feedforward_(intermediate|gate)_dense/kernel": (None, "model"),
    ".*feedforward_output_dense/kernel": ("model", None),
}


def efficient_net():
    return hub.EfficientNetBackbone(
        stackwise_kernel_sizes=[3, 3],
        stackwise_num_repeats=[1, 2],
        stackwise_input_filters=[8, 8],
        stackwise_output_filters=[8, 16],
        stackwise_expansion_ratios=[1, 4],
        stackwise_squeeze_and_excite_ratios=[0.25, 0.25],
        stackwise_strides=[1, 2],
        stackwise_block_types=["v1", "unfused"],
        stackwise_width_coefficients=[1.0, 1.0],
        stackwise_depth_coefficients=[1.0, 1.0],
        dropout=0.0,
        num_features=16,
        input_shape=IMAGE,
    )


def mobile_net():
    return hub.MobileNetBackbone(
        stackwise_expansion=[[16, 24], [24]],
        stackwise_num_blocks=[2, 1],
        stackwise_num_filters=[[8, 8], [16]],
        stackwise_kernel_size=[[3, 3], [5]],
        stackwise_num_strides=[[2, 1], [1]],
        stackwise_se_ratio=[[None, None], [0.25]],
        stackwise_activation=[["relu", "relu"], ["hard_swish"]],
        stackwise_padding=[[1, 1], [2]],
        output_num_filters=16,
        depthwise_filters=8,
        depthwise_stride=2,
        depthwise_residual=False,
        last_layer_filter=32,
        squeeze_and_excite=0.5,
        image_shape=IMAGE,
    )


def mix_transformer():
    return hub.MiTBackbone(
        layerwise_depths=[1, 1],
        num_layers=2,
        layerwise_num_heads=[1, 2],
        layerwise_sr_ratios=[2, 1],
        max_drop_path_rate=0.0,
        layerwise_patch_sizes=[7, 3],
        layerwise_strides=[4, 2],
        image_shape=IMAGE,
        hidden_dims=[8, 16],
    )


def segment_anything():
    image_encoder = hub.ViTDetBackbone(
        hidden_size=8,
        num_layers=2,
        intermediate_dim=16,
        num_heads=2,
        global_attention_layer_indices=[1],
        patch_size=8,
        num_output_channels=8,
        window_size=2,
        image_shape=IMAGE,
    )
    prompt_encoder = keras_hub.layers.SAMPromptEncoder(
        hidden_size=8, image_embedding_size=(4, 4), input_image_size=IMAGE[:2], mask_in_channels=4
    )
    mask_decoder = keras_hub.layers.SAMMaskDecoder(
        num_layers=1,
        hidden_size=8,
        intermediate_dim=16,
        num_heads=2,
        embedding_dim=8,
        num_multimask_outputs=3,
        iou_head_depth=2,
        iou_head_hidden_dim=8,
    )
    backbone = hub.SAMBackbone(image_encoder=image_encoder, prompt_encoder=prompt_encoder, mask_decoder=mask_decoder)
    # SAMImageSegmenter refuses `fit`; this is the model in it.
    return keras.Model(backbone.input, mask_decoder(**backbone(backbone.input)))


def prompts(num_rows, generator):
    return {
        "images": images(num_rows, generator),
        "points": generator.uniform(0, 32, (num_rows, 2, 2)).astype(np.float32),
        "labels": generator.integers(0, 2, (num_rows, 2)).astype(np.float32),
        "boxes": generator.uniform(0, 32, (num_rows, 1, 2, 2)).astype(np.float32),
        "masks": generator.normal(size=(num_rows, 1, 16, 16, 1)).astype(np.float32),
    }


def clip_text(name="clip_text", **options):
    return hub.CLIPTextEncoder(
        vocabulary_size=VOCABULARY,
        embedding_dim=16,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        max_sequence_length=LENGTH,
        name=name,
        **options,
    )


def clip():
    vision = hub.CLIPVisionEncoder(
        patch_size=8, hidden_dim=16, num_layers=1, num_heads=2, intermediate_dim=32, image_shape=IMAGE
    )
    return hub.CLIPBackbone(vision_encoder=vision, text_encoder=clip_text(), projection_dim=8)


def variational_autoencoder():
    return VAEBackbone(
        encoder_num_filters=[32, 32],
        encoder_num_blocks=[1, 1],
        decoder_num_filters=[32, 32],
        decoder_num_blocks=[1, 1],
        sampler_method="mode",
        sample_channels=8,
    )


def stable_diffusion():
    """The model that is trained: the diffuser, which takes latents, a time, and what the encoders made of a text."""
    model = hub.StableDiffusion3Backbone(
        mmdit_patch_size=2,
        mmdit_hidden_dim=16,
        mmdit_num_layers=2,
        mmdit_num_heads=2,
        mmdit_position_size=8,
        mmdit_qk_norm="rms_norm",
        mmdit_dual_attention_indices=(0,),
        vae=VAEBackbone([32, 32, 32, 32], [1] * 4, [32, 32, 32, 32], [1] * 4, sample_channels=8),
        clip_l=clip_text("clip_l", intermediate_output_index=0),
        clip_g=clip_text("clip_g", intermediate_output_index=0),
        latent_channels=4,
        image_shape=(64, 64, 3),
    )
    return model.diffuser


def noise_and_text(num_rows, generator):
    return {
        "latent": generator.normal(size=(num_rows, 8, 8, 4)).astype(np.float32),
        "context": generator.normal(size=(num_rows, LENGTH, 4096)).astype(np.float32),
        "pooled_projection": generator.normal(size=(num_rows, 32)).astype(np.float32),
        "timestep": generator.uniform(0, 1000, (num_rows, 1)).astype(np.float32),
    }


def flux():
    return hub.FluxBackbone(
        input_channels=8,
        hidden_size=16,
        mlp_ratio=2.0,
        num_heads=2,
        depth=1,
        depth_single_blocks=1,
        axes_dim=[2, 2, 4],
        theta=10_000,
        use_bias=True,
        guidance_embed=True,
        image_shape=(4, 8),
        text_shape=(LENGTH, 8),
        image_ids_shape=(4, 3),
        text_ids_shape=(LENGTH, 3),
        y_shape=(8,),
    )


def patches_and_text(num_rows, generator):
    def normal(*shape):
        return generator.normal(size=(num_rows, *shape)).astype(np.float32)

    return {
        "image": normal(4, 8),
        "image_ids": normal(4, 3),
        "text": normal(LENGTH, 8),
        "text_ids": normal(LENGTH, 3),
        "y": normal(8),
        "timesteps": normal(),
        "guidance": normal(),
    }


MODELS = {
    "ResNet": Published(
        kind="images",
        make=lambda: hub.ResNetBackbone([64], [7], [64, 64], [1, 1], [1, 2], "basic_block", image_shape=IMAGE),
        inputs=images,
        batch_statistics=True,
    ),
    "DenseNet": Published(
        kind="images",
        make=lambda: hub.DenseNetBackbone([2, 2], image_shape=IMAGE, growth_rate=8),
        inputs=images,
        batch_statistics=True,
    ),
    "EfficientNet": Published(kind="images", make=efficient_net, inputs=images, batch_statistics=True),
    "MobileNet": Published(kind="images", make=mobile_net, inputs=images, batch_statistics=True),
    "ViT": Published(
        kind="images",
        make=lambda: hub.ViTBackbone(IMAGE, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32),
        inputs=images,
        layout_map={**ATTENTION, ".*mlp.*dense_1/kernel": (None, "model"), ".*mlp.*dense_2/kernel": ("model", None)},
    ),
    "DeiT": Published(
        kind="images",
        make=lambda: hub.DeiTBackbone(IMAGE, 8, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32),
        inputs=images,
    ),
    "SegFormer": Published(
        kind="images",
        make=lambda: hub.SegFormerBackbone(image_encoder=mix_transformer(), projection_filters=16),
        inputs=images,
        batch_statistics=True,
    ),
    "Swin": Published(
        kind="images",
        make=lambda: hub.SwinTransformerBackbone(IMAGE, 8, (1, 1), (2, 2), 4, patch_size=4, drop_path=0.0),
        inputs=images,
    ),
    "SAM": Published(kind="images with prompts", make=segment_anything, inputs=prompts),
    "BERT": Published(
        kind="text", make=lambda: hub.BertBackbone(**ENCODER, **SHORT), inputs=text_of_segments, layout_map=BERT_MAP
    ),
    "RoBERTa": Published(kind="text", make=lambda: hub.RobertaBackbone(**ENCODER, **SHORT), inputs=text),
    "DeBERTa": Published(
        kind="text", make=lambda: hub.DebertaV3Backbone(**ENCODER, **SHORT, bucket_size=4), inputs=text
    ),
    "DistilBERT": Published(kind="text", make=lambda: hub.DistilBertBackbone(**ENCODER, **SHORT), inputs=text),
    "ALBERT": Published(
        kind="text", make=lambda: hub.AlbertBackbone(**ENCODER, **SHORT, embedding_dim=8), inputs=text_of_segments
    ),
    "GPT-2": Published(kind="text", make=lambda: hub.GPT2Backbone(**ENCODER, **SHORT), inputs=text),
    "Gemma": Published(
        kind="text",
        make=lambda: hub.GemmaBackbone(**DECODER, head_dim=8),
        inputs=text,
        layout_map=hub.GemmaBackbone.get_layout_map,
    ),
    "Gemma 3": Published(
        kind="text",
        make=lambda: hub.Gemma3Backbone(
            **DECODER,
            image_size=None,
            head_dim=8,
            use_sliding_window_attention=True,
            sliding_window_size=4,
            use_post_ffw_norm=True,
            use_post_attention_norm=True,
        ),
        inputs=text,
        layout_map=GEMMA_MAP,
    ),
    "Llama": Published(
        kind="text",
        make=lambda: hub.LlamaBackbone(**DECODER),
        inputs=text,
        layout_map=hub.LlamaBackbone.get_layout_map,
    ),
    "Llama 3": Published(
        kind="text",
        make=lambda: hub.Llama3Backbone(**DECODER),
        inputs=text,
        layout_map=hub.Llama3Backbone.get_layout_map,
    ),
    "Mistral": Published(
        kind="text", make=lambda: hub.MistralBackbone(**DECODER, sliding_window=4), inputs=text, layout_map=LLAMA_MAP
    ),
    "Phi-3": Published(kind="text", make=lambda: hub.Phi3Backbone(**DECODER), inputs=text, layout_map=LLAMA_MAP),
    "Qwen": Published(
        kind="text",
        make=lambda: hub.QwenBackbone(**DECODER),
        inputs=text,
        layout_map=hub.QwenBackbone.get_layout_map,
    ),
    "Qwen MoE": Published(
        kind="text",
        make=lambda: hub.QwenMoeBackbone(
            **DECODER, moe_intermediate_dim=16, shared_expert_intermediate_dim=16, num_experts=4, top_k=2
        ),
        inputs=text,
        layout_map=hub.QwenMoeBackbone.get_layout_map,
    ),
    "T5": Published(kind="text to text", make=lambda: hub.T5Backbone(**ENCODER), inputs=two_texts),
    "BART": Published(kind="text to text", make=lambda: hub.BartBackbone(**ENCODER, **SHORT), inputs=two_texts),
    "Whisper": Published(
        kind="speech to text",
        make=lambda: hub.WhisperBackbone(
            **ENCODER, num_mels=8, max_encoder_sequence_length=12, max_decoder_sequence_length=LENGTH
        ),
        inputs=lambda num_rows, generator: {
            "encoder_features": generator.normal(size=(num_rows, 12, 8)).astype(np.float32),
            "decoder_token_ids": ids(num_rows, generator),
            "decoder_padding_mask": mask(num_rows, generator),
        },
    ),
    "CLIP": Published(
        kind="images and text",
        make=clip,
        inputs=lambda num_rows, generator: {
            "images": images(num_rows, generator),
            "token_ids": ids(num_rows, generator),
        },
    ),
    "VAE": Published(kind="images to images", make=variational_autoencoder, inputs=images),
    "Stable Diffusion 3": Published(kind="text to images", make=stable_diffusion, inputs=noise_and_text),
    "Flux": Published(kind="text to images", make=flux, inputs=patches_and_text),
}

STRATEGIES = ("mirrored", "sharded_3", "model_parallel")
TITLES = ("`MirroredStrategy`", "`ShardedStrategy(stage=3)`", "`ShardedStrategy(model_parallel=2)`")
FAILS: dict[tuple[str, str], str] = {}
"""Why a strategy does not give the numbers of one device, by model and strategy. The documentation lists them."""


def has_cell(name: str, strategy: str) -> bool:
    """Whether a model is tested under a strategy: to divide layers takes a map."""
    return strategy != "model_parallel" or MODELS[name].layout_map is not None


def table() -> str:
    """Returns the table in the documentation."""
    lines = ["| model | computes on | " + " | ".join(TITLES) + " |", "|---|---|---|---|---|"]
    for name, published in MODELS.items():
        cells = []
        for strategy in STRATEGIES:
            if not has_cell(name, strategy):
                cells.append("no map")
            elif (name, strategy) in FAILS:
                cells.append(f"fails: {FAILS[name, strategy]}")
            else:
                own = strategy == "model_parallel" and not callable(published.layout_map)
                cells.append("equal, with a map of ours" if own else "equal")
        lines.append(f"| {name} | {published.kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
