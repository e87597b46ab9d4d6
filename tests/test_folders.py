"""Where model folders are found."""

from pathlib import Path

import pytest

from meshcap import folders
from meshcap.errors import MeshcapError


@pytest.mark.parametrize("find", [folders.find_file, folders.find_optional])
def test_a_name_without_an_owner_is_refused_offline(find, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*args: object, **kwargs: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    for name in ("no-such-folder", Path("no-such-folder")):
        with pytest.raises(MeshcapError, match="no model 'no-such-folder': there is no such folder here"):
            find(name, folders.CONFIG)
    with pytest.raises(AssertionError, match="the hub was asked"):
        find("owner/name", folders.CONFIG)


def test_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert folders.find_file(tmp_path, "config.json") == tmp_path / "config.json"
    assert folders.find_optional(tmp_path, "vocabulary.json") is None
    with pytest.raises(MeshcapError, match=r"has no vocabulary\.json: expected a model folder"):
        folders.find_file(tmp_path, "vocabulary.json")
    with pytest.raises(MeshcapError, match="is a file, expected a model folder"):
        folders.find_file(tmp_path / "config.json", "config.json")


@pytest.mark.parametrize(
    ("content", "message"), [("[]", "holds a list, expected an object"), ("{", "is not readable JSON")]
)
def test_settings_that_cannot_be_read(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(MeshcapError, match=message):
        folders.read_config(path)
