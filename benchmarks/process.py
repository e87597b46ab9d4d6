"""One captioner in a process of its own, timed: what `caption.py` and `runtimes.py` start for each row of their tables.

It is given a JSON object as its only argument and prints one. Nothing is imported that the captioner itself does not
import: memory and the start are measured too.

Peers are captioners of transformers, of the sizes that were published and with random weights: nothing is downloaded.
Speed does not depend on what weights have learned, as long as captions are as long: each is made to say the same number
of tokens.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PEERS = {"blip": "BLIP-base", "git": "GIT-base", "vit-gpt2": "ViT-GPT2", "florence": "Florence-2-base"}
SIDES = {"blip": 384, "git": 224, "vit-gpt2": 224, "florence": 768}  # pixels of a picture, as published
# What a model reads before it speaks, where that is more than its own beginning. Of Florence-2 places for the picture
# (577 tokens) and a question of seven words.
GIVEN = {"git": [101], "florence": [0, *[51289] * 577, *range(100, 107), 2]}


def build(name: str) -> Any:
    """A peer as its makers published it, but for the weights."""
    import transformers as hf

    if name == "blip":
        config = hf.BlipConfig(
            text_config={"num_attention_heads": 12, "vocab_size": 30524}, vision_config={"image_size": 384}
        )
        return hf.BlipForConditionalGeneration(config)
    if name == "git":
        return hf.GitForCausalLM(hf.GitConfig())
    if name == "florence":
        text: dict[str, Any] = {"model_type": "bart", "d_model": 768, "vocab_size": 51290}
        for half in ("encoder", "decoder"):
            text |= {f"{half}_layers": 6, f"{half}_ffn_dim": 3072, f"{half}_attention_heads": 12}
        config = hf.Florence2Config(text_config=text, vision_config={"projection_dim": 768}, image_token_id=51289)
        return hf.Florence2ForConditionalGeneration(config)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(), hf.GPT2Config(add_cross_attention=True, is_decoder=True)
    )
    config.decoder_start_token_id = config.pad_token_id = config.eos_token_id = config.decoder.eos_token_id
    return hf.VisionEncoderDecoderModel(config=config)


def write_peer(name: str, folder: Path) -> None:
    """Files to start from, as large as the published ones."""
    import torch

    torch.manual_seed(0)
    build(name).save_pretrained(folder)


def read_for_peer(name: str, photo: str) -> Any:
    """(3, S, S) uint8 of a file, as an array."""
    import numpy
    from PIL import Image

    side = SIDES[name]
    with Image.open(photo) as image:
        image.draft("RGB", (side, side))  # a large JPEG is decoded at a part of its size, as ours are
        small = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
    return numpy.asarray(small).transpose(2, 0, 1)


def say_by_peer(name: str, model: Any, pixels: Any, beams: int, words: int) -> Any:
    """Tokens of pictures (B, 3, S, S) uint8, a tensor where the model is."""
    import torch

    given = {}
    if name in GIVEN:
        given["input_ids"] = torch.tensor(GIVEN[name], device=pixels.device).expand(len(pixels), -1)
    with torch.inference_mode():
        return model.generate(
            pixel_values=((pixels.float() / 255 - 0.5) / 0.5).to(model.dtype),
            num_beams=beams,
            min_new_tokens=words,
            max_new_tokens=words,
            **given,
        )


def load_peer(name: str, folder: Path, beams: int, words: int) -> tuple[Callable[[str], object], int]:
    """How to caption a photo, and how many weights that takes."""
    import torch
    import transformers as hf

    classes = {
        "blip": hf.BlipForConditionalGeneration,
        "git": hf.GitForCausalLM,
        "vit-gpt2": hf.VisionEncoderDecoderModel,
        "florence": getattr(hf, "Florence2ForConditionalGeneration", None),
    }
    model = classes[name].from_pretrained(folder).eval()

    def caption(photo: str) -> object:
        pixels = torch.from_numpy(read_for_peer(name, photo).copy())
        return say_by_peer(name, model, pixels[None], beams, words)

    return caption, sum(weight.numel() for weight in model.parameters())


def measure(
    *,
    who: str,
    model: str,
    photos: list[str],
    beams: int,
    repeat: int,
    threads: int,
    dtype: str = "float32",
    backend: str = "torch",
    words: int | None = None,
    folder: bool = False,
) -> dict[str, Any]:
    """Caption the first photo once, then each photo `repeat` times, then (with `folder`) all of them as a folder.

    Args:
        who: "meshcap", or one of `PEERS`.
        repeat: 0 captions the first photo once and measures nothing: a cold start.
        words: of every caption, its end counted, so that all say equally much; None: as many as it likes.
    """
    if backend != "onnx":
        import torch

        torch.set_num_threads(threads)
    many: Callable[[], object] | None = None
    parameters = 0
    if who == "meshcap":
        one, many = load_ours(model, dtype, backend, photos, beams, words, threads)
    else:
        one, parameters = load_peer(who, Path(model), beams, words or 12)
    one(photos[0])
    start = time.process_time()  # of this process, since it began
    one(photos[0])
    wall, cpu, captions = [], [], []
    for photo in photos if not folder else photos[:1]:
        for _ in range(repeat):
            before, started = time.process_time(), time.perf_counter()
            said = one(photo)
            wall.append(time.perf_counter() - started)
            cpu.append(time.process_time() - before)
        if repeat and who == "meshcap":
            captions.append(said.words)
    rate = None
    if folder and many is not None and repeat:
        started = time.perf_counter()
        many()
        rate = len(photos) / (time.perf_counter() - started)
    return {
        "seconds": statistics.median(wall or [0.0]),  # of a photo
        "cpu_seconds": statistics.median(cpu or [0.0]),  # of a photo, all threads
        "start": start,  # seconds of CPU until the first caption
        "folder": rate,  # photos a second
        "memory": peak_of_this_process(),
        "parameters": parameters,
        "captions": captions,
    }


def measure_parts(
    *, model: str, dtype: str, backend: str, photos: list[str], beams: int, words: int, repeat: int, threads: int
) -> dict[str, Any]:
    """Seconds of the start, and of a photo, part by part: medians over `repeat` times all photos.

    What an exported captioner sees is encoded already; of others, the encoder is timed once more, alone.
    """
    start = time.perf_counter()
    parts: dict[str, float] = {}
    steps: dict[str, list[float]] = {}

    def lap(name: str) -> None:
        parts[name] = time.perf_counter() - start - sum(parts.values())

    def timed(name: str, work: Callable[..., Any], *given: Any) -> Any:
        started = time.perf_counter()
        found = work(*given)
        steps.setdefault(name, []).append(time.perf_counter() - started)
        return found

    if backend == "torch":
        import torch

        torch.set_num_threads(threads)
    lap("torch")
    from meshcap.captioner import Captioner
    from meshcap.options import CaptionOptions

    if backend == "torch":
        import meshcap.backends.torch_backend
    else:
        import meshcap.backends.onnx_backend  # noqa: F401 - its time belongs here
    lap("meshcap")
    how: dict[str, Any] = {"dtype": dtype, "backend": backend, "threads": threads}
    captioner = Captioner.from_pretrained(model, device="cpu", **how).optimize()
    lap("weights")
    options = CaptionOptions(beams=beams, max_words=words - 1, min_words=words - 1)  # the end is counted
    captioner.caption(photos[0], options)
    lap("first")

    def encode(regions: Any) -> Any:
        own: Any = captioner.backend
        with torch.no_grad():
            return own.prepared().model.encode(own._fitting(regions))

    captions = []
    for _ in range(repeat):
        for photo in photos:
            before = time.perf_counter()
            regions = timed("vision", captioner.see, [timed("decode", captioner.read, photo)])
            captions += timed("text", captioner.say, timed("search", captioner.search, regions, options), options)
            steps.setdefault("photo", []).append(time.perf_counter() - before)
            if backend == "torch":
                timed("encoder", encode, regions)
    found = {name: statistics.median(seconds) for name, seconds in steps.items()}
    found["decoder"] = found.pop("search") - found.setdefault("encoder", 0.0)
    return {**parts, **found, "captions": [one.words for one in captions[: len(photos)]]}


def load_ours(
    model: str, dtype: str, backend: str, photos: list[str], beams: int, words: int | None, threads: int
) -> tuple[Callable[[str], Any], Callable[[], object]]:
    """How to caption a photo, and how to caption all of them as a folder."""
    from meshcap.captioner import Captioner
    from meshcap.errors import MeshcapError

    options: dict[str, Any] = {"beams": beams}
    if words is not None:  # the end is counted
        options |= {"max_words": words - 1, "min_words": words - 1}
    how: dict[str, Any] = {"dtype": dtype if backend == "torch" else "auto", "backend": backend, "threads": threads}
    captioner = Captioner.from_pretrained(model, device="cpu", **how).optimize()
    if not captioner.reads_pictures:
        raise MeshcapError(f"{model} reads region features, not photos: expected a model with a vision")
    return (
        lambda photo: captioner.caption(photo, **options),
        lambda: list(captioner.stream(photos, **options)),
    )


def peak_of_this_process() -> float:
    """Bytes. `ru_maxrss` also remembers the process that started this one, so Linux is asked for its own count."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most) if sys.platform == "darwin" else most * 1024.0


if __name__ == "__main__":
    from meshcap.errors import MeshcapError

    if sys.argv[1] == "--write-peer":
        write_peer(sys.argv[2], Path(sys.argv[3]))
        sys.exit()
    try:
        job = json.loads(sys.argv[1])
        found = measure_parts(**job) if job.pop("parts", False) else measure(**job)
    except MeshcapError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(found))
