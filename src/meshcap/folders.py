"""Model folders: what lies in one, and where one is found.

A model is named by its folder or as on the Hugging Face hub (`owner/name`); "default" is the one inside the package.
Nothing here needs torch; `meshcap.weights` reads and writes the weights.

    config.json        name and settings of the model      vision/vision.json         the backbone's, where it has one
    model.safetensors  its weights                         vision/model.safetensors   the backbone's weights
    vocabulary.json    words to ids                        calibration.json           raw confidence to frequency
    memory.safetensors, memory.json     what reads a long-term memory, where it was trained
    centre.safetensors what all pictures share, of the vectors that a long-term memory compares
    names.safetensors  a head for names, where it has one  names.json                 what its outputs mean
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from meshcap.errors import MeshcapError
from meshcap.files import why_not_json

Bits = Literal[4, 6, 8, 16, 32]  # of a weight in a file: see `meshcap.weights`

CONFIG, WEIGHTS = "config.json", "model.safetensors"
VOCABULARY, CALIBRATION = "vocabulary.json", "calibration.json"
MEMORY, MEMORY_CONFIG, CENTRE = "memory.safetensors", "memory.json", "centre.safetensors"
NAMES, NAMES_TABLE = "names.safetensors", "names.json"
VISION_FOLDER, VISION_CONFIG = "vision", "vision.json"
DEFAULT = "default"
MUSIC = "music"  # the captioner of scores
# The folders of the models that the package carries.
PACKAGED = Path(__file__).resolve().parent / "default"
PACKAGED_MUSIC = Path(__file__).resolve().parent / "music" / "captioner"


def folder_of(model_id: str | Path) -> Path:
    """Where a model lies, if it lies in a folder. `"default"` and `"music"` name the packaged ones; `./default` is a
    folder of yours.

    Raises:
        MeshcapError: the packaged one is asked for, and this installation has none.
    """
    if model_id not in (DEFAULT, MUSIC):  # which a Path never equals
        return Path(model_id)
    packaged = PACKAGED if model_id == DEFAULT else PACKAGED_MUSIC
    if not (packaged / CONFIG).is_file():
        raise MeshcapError("this installation carries no model of its own: name a model folder or one on the hub")
    return packaged


def find_file(model_id: str | Path, filename: str, **hub: Any) -> Path:
    """A file of a model folder, of a model on the Hugging Face hub, or of the packaged one.

    Args:
        hub: keywords of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.

    Raises:
        MeshcapError: no such model, or it has no such file.
    """
    folder = folder_of(model_id)
    if folder.is_dir():
        path = folder / filename
        if not path.is_file():
            raise MeshcapError(f"{folder} has no {filename}: expected a model folder as save_pretrained writes it")
        return path
    if folder.exists():
        raise MeshcapError(f"{folder} is a file, expected a model folder with {CONFIG} and {WEIGHTS}")
    if "/" not in str(model_id):  # no name on the hub: its models have owners
        raise MeshcapError(
            f"no model {str(model_id)!r}: there is no such folder here, and a name on the hub is owner/name"
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(str(model_id), filename, **hub))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MeshcapError(
            f"no model {str(model_id)!r}: neither a folder here nor found on the hub ({reason})"
        ) from error


def find_optional(model_id: str | Path, filename: str, **hub: Any) -> Path | None:
    """As `find_file`; None where there is such a model, and it has no such file."""
    folder = folder_of(model_id)
    if folder.is_dir():
        path = folder / filename
        return path if path.is_file() else None
    try:
        return find_file(model_id, filename, **hub)
    except MeshcapError as error:
        cause = error.__cause__
        if cause is None:
            raise
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        if isinstance(cause, LocalEntryNotFoundError):  # no network: the hub may have said before that there is none
            where = {key: hub[key] for key in ("cache_dir", "revision") if key in hub}
            known = try_to_load_from_cache(str(model_id), filename, **where)
            if known is None or isinstance(known, str):
                raise
        elif not isinstance(cause, EntryNotFoundError):
            raise
        return None


def fetch_folder(model_id: str | Path, name: str, **hub: Any) -> Path:
    """A folder inside a model folder; of a model on the hub, all its files are downloaded."""
    folder = folder_of(model_id)
    if folder.is_dir():
        return folder / name
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(model_id), allow_patterns=f"{name}/*", **hub), name)


def read_config(path: Path) -> dict[str, Any]:
    """The object in a JSON file of settings.

    Raises:
        MeshcapError: not JSON, or JSON of something else.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise MeshcapError(f"{path} is not readable JSON ({why_not_json(error)}): expected settings") from error
    if not isinstance(settings, dict):
        raise MeshcapError(f"{path} holds a {type(settings).__name__}, expected an object with the settings of a model")
    return settings
