"""The parts of the reference job: drawn archives are packed, weights are found, phases train what they say."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lockstep.clusters.machines.registry import check_machines
from lockstep.data import RecordSource, decode_example, read_manifest
from lockstep.data.images import decode_image
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError, ModelError, UnavailableError
from lockstep.jobs.input.documents import parse_config
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import parse_cluster
from lockstep.training import load_model, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

FOLDER = Path(__file__).parents[2] / "examples" / "cats_and_dogs"


def load(name: str) -> Any:
    """Returns a script of the example as a module."""
    spec = importlib.util.spec_from_file_location(f"cats_and_dogs_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw, network, pack, weights = (load(name) for name in ("draw", "network", "pack", "weights"))


def run_pack(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pack.py", *map(str, arguments)])
    pack.main()


def records(bucket: Path, split: str) -> list[Any]:
    source = RecordSource(f"{bucket}/cats-and-dogs-{split}-*.tfrec")
    return [decode_example(source[number]) for number in range(len(source))]


def test_an_archive_is_packed_without_its_damaged_files_and_they_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw.write_archive(tmp_path / "drawn.zip", num_pictures=40)
    run_pack(monkeypatch, tmp_path / "drawn.zip", tmp_path / "data", "--image-size", 48, "--shards", 2)
    out = capsys.readouterr().out
    assert "classes: Cat, Dog\ndamaged files left out: 10\n" in out
    assert "  6 x not an image that can be read\n" in out
    assert "  2 x it is empty\n" in out
    assert "  2 x the JPEG image is damaged: image file is truncated\n" in out
    assert "(other files left out: 2 .db, 1 .txt)" in out

    packed = {split: records(tmp_path / "data", split) for split in ("train", "validation")}
    every = [record for split in packed.values() for record in split]
    assert Counter(int(record["label"][0]) for record in every) == {0: 20, 1: 20}
    assert 0 < len(packed["validation"]) < 20
    assert all(record["image"][0].startswith(b"\xff\xd8\xff") for record in every), "JPEG"
    assert {decode_image(record["image"][0]).shape for record in every} == {(48, 48, 3)}, "also those in grayscale"
    manifest = read_manifest(str(tmp_path / "data"), name="cats-and-dogs", split="train")
    assert manifest.options["image_size"] == [48, 48]

    run_pack(monkeypatch, tmp_path / "drawn.zip", tmp_path / "data", "--image-size", 48, "--shards", 2)
    assert "damaged files left out: 10\n" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "drawn.zip") as archive:
        archive.extractall(tmp_path / "folder")
    run_pack(monkeypatch, tmp_path / "folder", tmp_path / "from_folder", "--image-size", 48, "--shards", 2)
    again = records(tmp_path / "from_folder", "validation")
    expected = {record["image"][0] for record in packed["validation"]}
    assert {record["image"][0] for record in again} == expected, "a picture is in the same split"

    with pytest.raises(SystemExit) as ended:
        run_pack(monkeypatch, tmp_path / "nothing.zip", tmp_path / "data")
    assert ended.value.code == MissingInputError.exit_code
    assert capsys.readouterr().err.startswith(f"pack.py: there is no file or folder {tmp_path}/nothing.zip")


def test_weights_come_from_the_cache_the_network_a_path_or_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = tmp_path / "published.h5"
    published.write_bytes(b"weights")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    cached = tmp_path / "keras" / "models" / "densenet121_weights_tf_dim_ordering_tf_kernels_notop.h5"

    monkeypatch.setattr(weights, "URL", (tmp_path / "missing.h5").as_uri())
    with pytest.raises(UnavailableError) as error, weights.open_weights("imagenet"):
        pass
    assert str(cached.parent) in str(error.value), "where the file goes"
    assert f"--weights gs://bucket/{cached.name}" in str(error.value)
    assert "--weights none" in str(error.value)
    assert list(cached.parent.iterdir()) == []

    monkeypatch.setattr(weights, "URL", published.as_uri())
    with pytest.raises(CorruptDataError, match="has another checksum"), weights.open_weights("imagenet"):
        pass
    assert not cached.exists(), "what is not the published file does not get there"
    monkeypatch.setattr(weights, "CHECKSUM", hashlib.md5(b"weights").hexdigest())
    for url in (published.as_uri(), ""):  # what is in the cache is not downloaded again
        monkeypatch.setattr(weights, "URL", url)
        with weights.open_weights("imagenet") as path:
            assert path == cached
    cached.write_bytes(b"others")
    with pytest.raises(CorruptDataError, match=f"remove it, or name your own file: --weights {cached}"):
        weights.open_weights("imagenet").__enter__()
    with weights.open_weights("none") as path:
        assert path is None

    sha = hashlib.sha256(b"weights").hexdigest()
    for named in (str(published), published.as_uri()):
        with weights.open_weights(named, checksum=sha.upper()) as path:
            assert path.name == "published.h5"
            assert path.read_bytes() == b"weights"
        with (
            pytest.raises(CorruptDataError, match="--weights-checksum"),
            weights.open_weights(named, checksum="0" * 32),
        ):
            pass
        with pytest.raises(InvalidInputError, match="an MD5 or SHA-256"), weights.open_weights(named, checksum="abc"):
            pass
    for named in (str(tmp_path / "no.h5"), (tmp_path / "no.h5").as_uri()):
        with pytest.raises(MissingInputError), weights.open_weights(named):
            pass
    with pytest.raises(InvalidInputError, match="for a path or a URL"), weights.open_weights("none", checksum=sha):
        pass


def test_the_published_file_is_the_one_that_keras_names() -> None:
    text = Path(keras.applications.DenseNet121.__code__.co_filename).with_name("densenet.py").read_text()
    assert weights.FILE in text
    assert weights.CHECKSUM in text


def build(*, precision: str = "float32", backbone: str = "small", size: int = 16) -> Any:
    return network.build_network(backbone=backbone, num_classes=2, image_size=size, precision=precision)


def test_a_phase_trains_the_head_then_the_last_layers_without_their_batch_normalization(tmp_path: Path) -> None:
    model = build()
    backbone = model.get_layer("backbone")
    (tmp_path / "other.weights.h5").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="has no weights of this backbone"):
        network.load_backbone(model, tmp_path / "other.weights.h5")
    source = build().get_layer("backbone")
    source.save_weights(tmp_path / "small.weights.h5")
    network.load_backbone(model, tmp_path / "small.weights.h5")
    for loaded, saved in zip(backbone.weights, source.weights, strict=True):
        np.testing.assert_array_equal(loaded.numpy(), saved.numpy())

    network.train_head(model)
    assert [variable.shape for variable in model.trainable_variables] == [(64, 2), (2,)]
    network.train_last(model, num_layers=5)  # a pooling, a convolution, its normalization, activation and pooling
    assert [variable.shape for variable in model.trainable_variables] == [(3, 3, 32, 64), (64, 2), (2,)]
    network.train_last(model, num_layers=30)
    assert len(model.trainable_variables) == 3 + 2, "all convolutions"
    network.train_all(model)
    assert len(model.trainable_variables) == 3 + 6 + 2
    assert network.describe_trained(model) == "23,826 of 24,050 parameters are trained"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_deployed_model_takes_pictures_of_any_size_and_names_the_classes(precision: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = build(precision=precision)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert model.get_layer("backbone").layers[1].compute_dtype == precision
    sizes = {"classes": ("Cat", "Dog"), "backbone": "small", "image_size": 16}
    server = network.build_server(model, precision=precision, **sizes)
    save_model(server, tmp_path)
    loaded = load_model(tmp_path)

    pictures = np.random.default_rng(0).integers(0, 256, (3, 2, 2, 3), np.uint8).repeat(8, axis=1).repeat(8, axis=2)
    expected = np.asarray(model.predict(pictures, verbose=0))
    answer = loaded.predict(pictures, verbose=0)
    assert list(answer) == ["Cat", "Dog"]
    np.testing.assert_allclose(np.stack(list(answer.values()), axis=1), expected, atol=5e-3)
    np.testing.assert_allclose(answer["Cat"] + answer["Dog"], 1, atol=1e-5)
    wide = pictures.repeat(4, axis=1).repeat(4, axis=2)
    wide = np.concatenate([np.zeros_like(wide[:, :, :24]), wide, np.zeros_like(wide[:, :, :24])], axis=2)
    np.testing.assert_allclose(loaded.predict(wide, verbose=0)["Cat"], answer["Cat"], atol=0.02)  # its middle is taken


def test_the_configuration_asks_for_two_accelerators() -> None:
    document = yaml.safe_load((FOLDER / "config.yaml").read_text())
    parse_config(document, source="config.yaml")
    accelerators = {"count": 2, "type": "NVIDIA_TESLA_V100"}
    assert document["trainingInput"]["masterConfig"] == {"acceleratorConfig": accelerators}


def test_the_image_of_the_job_runs_its_program() -> None:
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    assert lines[-1] == 'ENTRYPOINT ["python3", "-m", "train"]'
    assert any(line.startswith("FROM ") for line in lines)


def test_its_clusters_can_be_used() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (FOLDER / "README.md").read_text("utf-8"), re.DOTALL)
    catalogue = load_catalogue()
    for text in (*blocks, (FOLDER / "cluster.yaml").read_text("utf-8")):
        definition = parse_cluster(yaml.safe_load(text), source="cluster.yaml", catalogue=catalogue)
        check_machines(definition, catalogue=catalogue)
        assert definition.node_types["v100x2"].max_nodes == 2
    assert len(blocks) == 1
