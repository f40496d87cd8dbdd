"""The demo's GGUF file, and files of the same model in other formats of blocks, made of the demo's."""

from __future__ import annotations

from pathlib import Path

from engine.prepare.sources import demo_file

FORMATS = ("Q4_1", "Q8_0")


def gguf_file(blocks: str, folder: Path) -> Path:
    """Return the demo model's file with matrices in a format of blocks, such as `Q8_0`.

    The file is made in the folder, unless it is the one that the demo brings.
    """
    source = demo_file(folder)
    if blocks == "Q4_1":
        return source
    made = folder / f"demo.{blocks}.gguf"
    _convert(source, made, blocks)
    return made


def _convert(source: Path, made: Path, blocks: str) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader, kind = GGUFReader(source), GGMLQuantizationType[blocks]
    writer = GGUFWriter(made, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(field.name, field.contents(), *field.types[:1], sub_type=_item_type(field.types))
    for tensor in reader.tensors:
        data, type_ = tensor.data, tensor.tensor_type
        if type_ not in (GGMLQuantizationType.F32, kind):
            data, type_ = quantize(dequantize(data, type_), kind), kind
        writer.add_tensor(tensor.name, data, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _item_type(types: list[object]) -> object | None:
    """Return the type of an array's items."""
    return types[1] if len(types) > 1 else None
