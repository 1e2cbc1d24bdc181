"""The Open Inference Protocol (KServe v2) over HTTP, with Triton's extension for binary tensors.

A request is JSON, and maybe the binary data of tensors behind it: see `lockstep.tensors`. What this server does not
honour is refused by its name, parameters too. In addition to the protocol, the name of an input may be left out for a
model with one input.

Source: https://github.com/kserve/open-inference-protocol, and ``extension_binary_data.md`` of Triton's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast, final

import numpy as np
import orjson

from lockstep.errors import InvalidInputError, ModelError, closest
from lockstep.serving.images import ImageReader
from lockstep.serving.instances import Arrays, InputSpec, OutputSpec, writable
from lockstep.serving.protocols.inference_paths import InferencePath, Verb
from lockstep.serving.protocols.inference_tensors import read_binary, read_json, read_shape
from lockstep.serving.protocols.questions import BYTES_OF_A_NUMBER, Content, Question
from lockstep.tensors import BINARY_TYPE, HEADER_LENGTH, SIZE, server_metadata
from lockstep.tensors.datatypes import datatype_of, to_bytes

PLATFORM: Final = "keras"
BINARY_OUTPUT: Final = "binary_data"
BINARY_OUTPUTS: Final = "binary_data_output"
_REQUEST_KEYS: Final = ("id", "model_name", "model_version", "parameters", "inputs", "outputs")
_INPUT_KEYS: Final = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_KEYS: Final = ("name", "parameters")
_INSTEAD: Final[Mapping[str, str]] = {
    "timeout": "send the header X-Server-Timeout with a number of seconds",
    "classification": "leave it out, and find the greatest values yourself",
    "shared_memory_region": "send the data in the request",
}
"""What to do instead of using a parameter that Triton has."""


@final
@dataclass(frozen=True, kw_only=True)
class _Answer:
    """How a request is answered.

    Attributes:
        path: the path of the request.
        id: the id that the client gave the request; None if it gave none.
        outputs: the names of the outputs to return, and whether in binary form.
    """

    path: InferencePath
    id: str | None
    outputs: Mapping[str, bool]


def read_question(
    body: bytes,
    *,
    header_length: bytes | None,
    path: InferencePath,
    inputs: Sequence[InputSpec],
    output_names: Sequence[str],
) -> Question:
    """Reads a request.

    Args:
        body: the body of the request.
        header_length: the header with the length of the JSON; None if the whole body is JSON.
        path: the path of the request.
        inputs: the model's inputs.
        output_names: the names of the model's outputs.

    Raises:
        InvalidInputError: the body has another form, or asks for what the server does not have, or a tensor does not
            fit the model's inputs. The message names it.
        BodyTooLargeError: the request's decoded images are too large.
    """
    head, binary = _split(body, header_length)
    try:
        document = orjson.loads(head)
    except ValueError as error:
        action = None if header_length is None else f"check the header {HEADER_LENGTH}"
        raise InvalidInputError(f"the request is not JSON: {error}", action=action) from None
    request = _object(document, keys=_REQUEST_KEYS, where="the request")
    for key, named in (("model_name", path.model), ("model_version", path.version)):
        if request.get(key) not in (None, named):
            raise InvalidInputError(key, received=request[key], allowed=f"{named}, as in the path; or leave it out")
    id_ = request.get("id")
    if id_ is not None and not isinstance(id_, str):
        raise InvalidInputError("id", received=id_, allowed="text")
    parameters = _parameters(request, allowed={BINARY_OUTPUTS: bool}, where="the request")
    outputs = _read_outputs(
        request.get("outputs"), names=output_names, is_binary=bool(parameters.get(BINARY_OUTPUTS, False))
    )
    arrays = _read_inputs(request.get("inputs"), binary, specs=inputs)
    answer = _Answer(path=path, id=id_, outputs=outputs)
    return Question(arrays=arrays, write=partial(_write, answer=answer), size_of=partial(_size_of, answer=answer))


def describe_server(path: InferencePath) -> Content:
    """Returns the response to a path that is about the server: its metadata, or that it, or its model, is ready.

    A server that can be reached is ready.

    Args:
        path: the path of the request.
    """
    if path.verb is Verb.SERVER:
        return Content(body=orjson.dumps(server_metadata()))
    named = {"name": path.model} if path.verb is Verb.MODEL_READY else {}
    return Content(body=orjson.dumps({**named, "live" if path.verb is Verb.LIVE else "ready": True}))


def describe_model(path: InferencePath, *, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> Content:
    """Returns the metadata of a model, under the name of the path.

    Args:
        path: the path of the request.
        inputs: the model's inputs.
        outputs: the model's outputs.
    """
    document: dict[str, Any] = {"name": path.model}
    if path.version is not None:
        document["versions"] = [path.version]
    document["platform"] = PLATFORM
    document["inputs"] = [_describe_tensor(spec) for spec in inputs]
    document["outputs"] = [_describe_tensor(spec) for spec in outputs]
    return Content(body=orjson.dumps(document))


def _describe_tensor(spec: InputSpec | OutputSpec) -> dict[str, object]:
    shape = [-1, *(-1 if size is None else size for size in spec.shape)]
    return {"name": spec.name, "datatype": datatype_of(np.dtype(spec.dtype)), "shape": shape}


def _split(body: bytes, header_length: bytes | None) -> tuple[memoryview, memoryview]:
    view = memoryview(body)
    if header_length is None:
        return view, view[:0]
    text = header_length.decode("latin-1")
    is_number = text.isascii() and text.isdigit() and len(text) < 12
    if not is_number or int(text) > len(body):
        raise InvalidInputError(
            HEADER_LENGTH, received=text, allowed=f"the number of bytes of JSON, at most {len(body)}, those of the body"
        )
    return view[: int(text)], view[int(text) :]


def _object(value: object, *, keys: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputError(where, received=value, allowed=f"an object with {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise InvalidInputError(f"{where}: unknown key {key}", allowed=keys, action=closest(key, keys))
    return cast("Mapping[str, Any]", value)


def _parameters(owner: Mapping[str, Any], *, allowed: Mapping[str, type], where: str) -> Mapping[str, Any]:
    """Returns the parameters of a request, an input or an output. Those that are not honoured are refused."""
    found = owner.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidInputError(f"{where}: parameters", received=found, allowed="an object")
    for name, value in cast("dict[str, object]", found).items():
        if name not in allowed:
            action = _INSTEAD.get(name, "remove it")
            raise InvalidInputError(f"{where}: there is no parameter {name}", allowed=allowed.keys(), action=action)
        if type(value) is not allowed[name]:
            kind = "true or false" if allowed[name] is bool else "a number of bytes"
            raise InvalidInputError(f"{where}: parameter {name}", received=value, allowed=kind)
    return cast("dict[str, Any]", found)


def _read_outputs(value: object, *, names: Sequence[str], is_binary: bool) -> Mapping[str, bool]:
    if value is None or value == []:
        return dict.fromkeys(names, is_binary)
    if not isinstance(value, list):
        raise InvalidInputError("outputs", received=value, allowed="a list of objects")
    found: dict[str, bool] = {}
    for index, entry in enumerate(cast("list[object]", value)):
        where = f"outputs[{index}]"
        output = _object(entry, keys=_OUTPUT_KEYS, where=where)
        name = output.get("name")
        if not isinstance(name, str) or name not in names:
            near = closest(name, names) if isinstance(name, str) else None
            raise InvalidInputError(f"{where}: the model has no such output", received=name, allowed=names, action=near)
        if name in found:
            raise InvalidInputError(f"{where}: output {name} is there twice")
        parameters = _parameters(output, allowed={BINARY_OUTPUT: bool}, where=f"output {name}")
        found[name] = bool(parameters.get(BINARY_OUTPUT, is_binary))
    return found


def _read_inputs(value: object, binary: memoryview, *, specs: Sequence[InputSpec]) -> Arrays:
    if not isinstance(value, list) or not value:
        raise InvalidInputError("inputs", received=value, allowed="a list of one tensor or more")
    by_name = {spec.name: spec for spec in specs}
    images = ImageReader()
    found: Arrays = {}
    for index, entry in enumerate(cast("list[object]", value)):
        where = f"inputs[{index}]"
        tensor = _object(entry, keys=_INPUT_KEYS, where=where)
        name = tensor.get("name") or (specs[0].name if len(specs) == 1 else None)
        if not isinstance(name, str) or name not in by_name:
            near = closest(name, by_name) if isinstance(name, str) else None
            allowed = tuple(by_name)
            raise InvalidInputError(
                f"{where}: the model has no such input", received=name, allowed=allowed, action=near
            )
        if name in found:
            raise InvalidInputError(f"{where}: input {name} is there twice")
        found[name], binary = _read_input(tensor, binary, spec=by_name[name], images=images)
    if len(binary):
        raise InvalidInputError(
            "the body is longer than the tensors", received=f"{len(binary)} further bytes", action=f"check each {SIZE}"
        )
    missing = [name for name in by_name if name not in found]
    if missing:
        raise InvalidInputError(f"input {missing[0]} is missing", received=sorted(found))
    sizes = {name: len(array) for name, array in found.items()}
    if len(set(sizes.values())) > 1:
        raise InvalidInputError("the inputs have different numbers of instances", received=sizes)
    return {spec.name: found[spec.name] for spec in specs}


def _read_input(
    tensor: Mapping[str, Any], binary: memoryview, *, spec: InputSpec, images: ImageReader
) -> tuple[np.ndarray, memoryview]:
    """Returns a tensor, and the binary data of the tensors after it."""
    where = f"input {spec.name}"
    size = _parameters(tensor, allowed={SIZE: int}, where=where).get(SIZE)
    shape = read_shape(tensor.get("shape"), where=where)
    datatype, data = tensor.get("datatype"), tensor.get("data")
    if size is None:
        return read_json(data, datatype=datatype, shape=shape, spec=spec), binary
    if data is not None:
        raise InvalidInputError(f"{where}: it has data and {SIZE}", allowed="either of them")
    if not 0 <= size <= len(binary):
        raise InvalidInputError(
            f"{where}: {SIZE}", received=size, allowed=f"0 to {len(binary)}, the bytes that are left of the body"
        )
    return read_binary(binary[:size], datatype=datatype, shape=shape, spec=spec, images=images), binary[size:]


def _write(outputs: Arrays, *, answer: _Answer) -> Content:
    document: dict[str, Any] = {"model_name": answer.path.model}
    if answer.path.version is not None:
        document["model_version"] = answer.path.version
    if answer.id is not None:
        document["id"] = answer.id
    tensors: list[dict[str, Any]] = []
    buffers: list[memoryview] = []
    for name, is_binary in answer.outputs.items():
        array = outputs[name]
        datatype = datatype_of(array.dtype)
        if datatype is None:
            raise ModelError(f"output {name} is not of a type that the protocol has", received=array.dtype.name)
        tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype}
        if is_binary:
            buffers.append(to_bytes(array))
            tensor["parameters"] = {SIZE: len(buffers[-1])}
        else:
            tensor["data"] = writable(array.reshape(-1))
        tensors.append(tensor)
    document["outputs"] = tensors
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return Content(body=head)
    headers = ((b"content-type", BINARY_TYPE.encode()), (HEADER_LENGTH.encode(), b"%d" % len(head)))
    return Content(body=b"".join((head, *buffers)), headers=headers)


def _size_of(outputs: Arrays, *, answer: _Answer) -> int:
    return sum(
        outputs[name].nbytes if is_binary else outputs[name].size * BYTES_OF_A_NUMBER
        for name, is_binary in answer.outputs.items()
    )
