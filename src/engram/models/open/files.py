"""Read an untrusted model file: a state_dict (.pt, .pth), safetensors, .pt2, ONNX, Keras or skops.

Its size is checked before it is opened, nothing in it is ever executed, and its content is interpreted by the
module of its format. A state_dict becomes a network by `network_of`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from engram.core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engram.core.files import open_archive, read_tensors
from engram.models.architecture import Architecture
from engram.models.networks import SUPPORTED, DenseNetwork, Network
from engram.models.open.chain import ReadNetwork
from engram.models.open.exported import exported_network, is_exported
from engram.models.open.keras_file import MAGIC, is_keras, keras_network
from engram.models.open.merged import head_of, heads_in, merged
from engram.models.open.onnx_file import onnx_network, onnx_rewritten
from engram.models.open.sklearn_model import is_skops, skops_network
from engram.models.open.state_dict import dense_network, described_network

MAX_BYTES = 4 * 1024**3
CURE = "save it with torch.save(model.state_dict(), 'model.pt')"
# where training scripts keep the state_dict, next to epoch, optimizer, ...; tried before anything else
USUAL_KEYS = ("state_dict", "model_state_dict", "model", "model_state", "net", "network", "weights", "params")
MAX_NESTING = 4
PEEK = 4096
WRAPPERS = re.compile(r"^(module\.)+|(?<![^.])_orig_mod\.")  # DataParallel, torch.compile


class _Kind(Enum):
    ZIP = auto()
    HDF5 = auto()
    ONNX = auto()
    SAFETENSORS = auto()
    PICKLE = auto()


def read_network(path: Path, *, max_bytes: int = MAX_BYTES) -> DenseNetwork:
    """The fully-connected network in `path`; layers, names and nesting are inferred from the file."""
    network = read_any_network(path, max_bytes=max_bytes)
    if not isinstance(network, DenseNetwork):
        raise UnsupportedModelError([f"it has convolutions: {network.name}"], supported=SUPPORTED)
    return network


def read_any_network(
    path: Path, architecture: Architecture | None = None, *, max_bytes: int = MAX_BYTES
) -> Network:
    """The network in `path`, with or without convolutions."""
    return read_model(path, architecture, max_bytes=max_bytes).network


def read_model(
    path: Path, architecture: Architecture | None = None, *, head: str | None = None, max_bytes: int = MAX_BYTES
) -> ReadNetwork:
    """The network in `path`, and what the file says about its inputs.

    Convolutions of a state_dict need an `architecture`; other files contain their own. `head` reads only the
    tensors whose names begin with it.
    """
    kind = _kind(path, max_bytes)
    if (reader := _own_layers(path, kind)) is not None:
        if head is not None:
            raise ConfigError(f"--head chooses tensors of a state_dict, but {path} is a whole model; leave it out")
        return reader(path, architecture, max_bytes)
    state = _state(path, kind, max_bytes)
    ordered = kind is not _Kind.SAFETENSORS  # safetensors sorts by name
    return network_of(state, architecture, head=head, ordered=ordered, name=str(path))


def network_of(
    state: Mapping[str, Tensor],
    architecture: Architecture | None = None,
    *,
    head: str | None = None,
    ordered: bool = True,
    name: str = "it",
) -> ReadNetwork:
    """The network of a state_dict; weights in parts are put together and normalisations folded."""
    if head is not None:
        state = head_of(state, head, name)
    plain = merged(state, ordered=ordered)
    if architecture is not None:
        network: Network = described_network(plain.state, architecture, ordered=ordered)
        return ReadNetwork(network, notes=plain.notes, is_folded=plain.is_folded)
    try:
        network = dense_network(plain.state, ordered=ordered)
    except UnsupportedModelError as error:
        advice = None if head is not None else heads_in(state)
        if advice is None:
            raise
        raise UnsupportedModelError([*error.problems, advice], supported=SUPPORTED) from error
    return ReadNetwork(network, notes=plain.notes, is_assumed=True, is_folded=plain.is_folded)


def _own_layers(path: Path, kind: _Kind) -> Callable[[Path, Architecture | None, int], ReadNetwork] | None:
    """The reader of a file that contains its own layers; None for state_dicts."""
    if kind is _Kind.ZIP and is_exported(path):
        return lambda path, layers, most: exported_network(path, layers, max_bytes=most)
    if (kind is _Kind.ZIP and is_keras(path)) or kind is _Kind.HDF5:
        return _without_arch(keras_network)
    if kind is _Kind.ZIP and is_skops(path):
        return _without_arch(skops_network)
    return _without_arch(onnx_network) if kind is _Kind.ONNX else None


def _without_arch(read: Callable[..., ReadNetwork]) -> Callable[[Path, Architecture | None, int], ReadNetwork]:
    def reader(path: Path, layers: Architecture | None, max_bytes: int) -> ReadNetwork:
        if layers is not None:
            raise ConfigError(f"{path} contains its own layers; leave --arch out")
        return read(path, max_bytes=max_bytes)

    return reader


def read_state(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Tensor]:
    """The state_dict in `path`, as it is, with plain names."""
    kind = _kind(path, max_bytes)
    if _own_layers(path, kind) is not None:
        raise CheckpointError(f"{path} is a whole model, not a state_dict; {CURE}")
    return _state(path, kind, max_bytes)


def rewritten(
    path: Path, changes: Sequence[tuple[Tensor, Tensor]], *, max_bytes: int = MAX_BYTES
) -> tuple[bytes, list[str]] | None:
    """The state_dict or ONNX file in `path` with other weights, as bytes, and what of the file was left out.

    `changes` are pairs of an old tensor and a new one; the old one is looked for by its values, also transposed,
    and replaced wherever it stands. None if the file is of another kind or does not contain all of them. Beside
    the weights only plain settings are kept: an optimizer's state is made of the training records' gradients.
    """
    kind = _kind(path, max_bytes)
    if kind is _Kind.ONNX:
        content = onnx_rewritten(path, lambda state: _claims(state, changes), max_bytes=max_bytes)
        return None if content is None else (content, [])
    if _own_layers(path, kind) is not None:
        return None
    _state(path, kind, max_bytes)  # refuses what is not a state_dict
    loaded = _safetensors(path) if kind is _Kind.SAFETENSORS else _pickled(path, kind, max_bytes)
    assert isinstance(loaded, Mapping)
    where, state = next(iter(_states(loaded, "", set()).items()))
    state = dict(state)
    if (claims := _claims(state, changes)) is None:
        return None
    for name, (new, turned) in claims.items():
        state[name] = (new.T if turned else new).to(state[name].dtype).contiguous()
    if kind is _Kind.SAFETENSORS:
        return save(state, {"format": "pt"}), []
    kept: dict[str, object] = {key: value for key, value in loaded.items() if _is_plain(value)} if where else {}
    left_out = [str(key) for key in loaded if where and key != where and key not in kept]
    stream = io.BytesIO()
    torch.save({**kept, where: state} if where else state, stream)
    return stream.getvalue(), left_out


def _claims(
    state: Mapping[str, Tensor], changes: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, tuple[Tensor, bool]] | None:
    """Which new tensor goes where, and whether transposed; None if that can't be told.

    Several old tensors with the same values (zeros, say) are taken in the order of the file.
    """
    claims: dict[str, tuple[Tensor, bool]] = {}
    done: set[int] = set()
    for place, (old, _) in enumerate(changes):
        if place in done:
            continue
        equal = [index for index, (other, _) in enumerate(changes) if _turned(other, old) is False]
        found = [(name, turned) for name, value in state.items() if (turned := _turned(value, old)) is not None]
        if not found or len(equal) not in (1, len(found)):
            return None
        wanted = equal if len(equal) > 1 else equal * len(found)
        claims |= {name: (changes[index][1], turned) for (name, turned), index in zip(found, wanted, strict=True)}
        done |= set(equal)
    return claims


def _turned(stored: Tensor, wanted: Tensor) -> bool | None:
    """Whether a tensor of a file is the wanted one transposed; None if it is another one."""
    value = stored.to(wanted.dtype) if stored.is_floating_point() else stored
    if value.shape == wanted.shape and torch.equal(value, wanted):
        return False
    if wanted.ndim == 2 and value.shape == wanted.T.shape and torch.equal(value, wanted.T):
        return True
    return None


def _is_plain(value: object) -> bool:
    """A number, a text, or lists and mappings of such."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _state(path: Path, kind: _Kind, max_bytes: int) -> dict[str, Tensor]:
    """The state_dict in a file, with plain names."""
    loaded: object = _safetensors(path) if kind is _Kind.SAFETENSORS else _pickled(path, kind, max_bytes)
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{path} contains a {type(loaded).__name__}, not a state_dict; {CURE}")
    states = _states(loaded, "the file itself", set())
    if len(states) > 1:
        listed = ", ".join(map(repr, list(states)[:8]))
        raise CheckpointError(f"{path} contains several state_dicts ({listed}); save only the one to read")
    state = _unwrapped(next(iter(states.values()), {}))
    claimed = sum(value.numel() * value.element_size() for value in state.values())
    if claimed > max_bytes:  # a tensor of stride 0 can claim far more than the file contains
        raise CheckpointError(
            f"{path} claims {claimed:,} bytes of tensors, more than the limit of {max_bytes:,}; {CURE}"
        )
    if strange := [name for name in state if not name.isprintable() or len(name) > 200]:
        raise CheckpointError(
            f"{path} has unprintable or very long tensor names, e.g. {strange[0][:40]!r}; rename them"
        )
    return state


def _kind(path: Path, max_bytes: int) -> _Kind:
    """The kind of file, from its first bytes; from its suffix only if a damaged header does not show it."""
    try:
        if path.is_dir():
            raise CheckpointError(f"{path} is a directory; give the .pt, .pth or .safetensors file in it")
        if not path.exists():
            raise CheckpointError(f"there is no file {path}; check the path")
        if not path.is_file():
            raise CheckpointError(f"{path} is not a regular file; copy it to one first")
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(9)
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror or error}; check its permissions") from error
    if size > max_bytes:
        raise CheckpointError(f"{path} has {size:,} bytes, more than the limit of {max_bytes:,}; {CURE}")
    if head.startswith(b"PK\x03\x04"):
        return _Kind.ZIP
    # before pickle: a header's length may start with the byte that pickles start with
    if (head[8:] == b"{" and int.from_bytes(head[:8], "little") <= size) or path.suffix == ".safetensors":
        return _Kind.SAFETENSORS
    if head.startswith(b"\x80"):
        return _Kind.PICKLE
    if head.startswith(MAGIC):
        return _Kind.HDF5
    # a protobuf message has no magic number; ONNX begins with its version, a small number in field 1
    if path.suffix.lower() == ".onnx" or (head[:1] == b"\x08" and 0 < head[1:2][0] < 32 and size > 64):
        return _Kind.ONNX
    if size == 0:
        raise CheckpointError(f"{path} is empty; download or copy it again")
    raise CheckpointError(
        f"{path} is none of the files that engram reads: PyTorch (.pt, .pth, .pt2), safetensors, ONNX, Keras "
        f"(.keras, .h5), skops. {CURE}"
    )


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(path)
    except CheckpointError:
        raise
    except Exception as error:  # for example, an unknown dtype in the header raises KeyError
        raise CheckpointError(f"{path} can't be read as safetensors ({error!r}); save it again") from error


def _pickled(path: Path, kind: _Kind, max_bytes: int) -> object:
    """The result of torch.load with code execution ruled out."""
    if kind is _Kind.ZIP:
        _check_archive(path, max_bytes)
    try:
        # a stream: given a path, torch.load trusts a .safetensors suffix over the content
        with warnings.catch_warnings(), path.open("rb") as stream:
            warnings.simplefilter("ignore")
            loaded: object = torch.load(stream, weights_only=True, map_location="cpu")
    except Exception as error:  # a hostile stream can make the unpickler raise anything
        # "from None": torch's own message recommends weights_only=False, the one thing not to do
        with path.open("rb") as stream:
            is_estimator = b"sklearn" in stream.read(PEEK)
        if is_estimator:
            raise CheckpointError(
                f"{path} is a pickle of scikit-learn, and a pickle could run code. If you trust it, load it in "
                "Python and give the object to engram.audit, or write it with skops.io.dump(model, 'model.skops')"
            ) from None
        raise CheckpointError(f"{path} can't be read safely: {_reason(error)}; {CURE}") from None
    return loaded


def _check_archive(path: Path, max_bytes: int) -> None:
    """Refuse, before unpacking, archives that are too large inside or that torch.save did not write."""
    with open_archive(path, max_bytes, CURE) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    if "constants.pkl" in names:
        raise CheckpointError(
            f"{path} is a TorchScript archive, whose code would have to be run to read it; if you trust it, "
            f"{CURE}, and describe convolutions with --arch"
        )
    if "data.pkl" not in names:
        raise CheckpointError(f"{path} is a zip archive, but neither torch.save, Keras nor skops wrote it; {CURE}")


def _reason(error: Exception) -> str:
    """Torch's reason without its advice."""
    if asked := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return f"it contains Python objects, not only tensors (it asks to load {asked[1]}, which could run code)"
    reason = str(error).partition(". ")[0].partition("\n")[0]
    if not reason or "eights only" in reason or "weights_only" in reason:
        return f"it is damaged, or not a state_dict written by torch.save ({type(error).__name__})"
    return f"it is truncated or damaged ({reason})"


def _states(value: object, where: str, seen: set[int], depth: int = 0) -> dict[str, dict[str, Tensor]]:
    """The state_dicts in a checkpoint: under the usual keys, else at this level, else under any key."""
    if not isinstance(value, Mapping) or depth > MAX_NESTING or id(value) in seen:
        return {}
    seen.add(id(value))  # visit shared or circular parts only once
    found: dict[str, dict[str, Tensor]] = {}
    for key in USUAL_KEYS:
        found |= _states(value.get(key), key, seen, depth + 1)
    if not found and (tensors := _tensors(value)):
        return {where: tensors}
    if not found:
        for key in (key for key in value if isinstance(key, str)):  # an optimizer numbers its state
            found |= _states(value[key], key, seen, depth + 1)
    return found


def _tensors(value: Mapping[object, object]) -> dict[str, Tensor]:
    """The tensors directly in a mapping; the items of a list `weights` become `weights.0`, ..."""
    tensors = {}
    for key, item in value.items():
        if isinstance(key, str) and isinstance(item, Tensor):
            tensors[key] = item
        elif isinstance(key, str) and isinstance(item, list | tuple):
            tensors |= {f"{key}.{i}": part for i, part in enumerate(item) if isinstance(part, Tensor)}
    return tensors


def _unwrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names without the prefixes of DataParallel and torch.compile, unless two would become equal."""
    plain = {WRAPPERS.sub("", name): value for name, value in state.items()}
    return plain if len(plain) == len(state) else state
