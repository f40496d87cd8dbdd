"""The engine's settings are one struct: its flags, their help and its JSON are made from the fields."""

from __future__ import annotations

import msgspec
import pytest

from engine.__main__ import parse_arguments
from engine.config import EngineConfig
from engine.config.text import fields_of, whole_flag

REQUIRED = ["--model-dir", "/model", "--adapter-store", "/store", "--endpoint", "ipc:///sock"]

EVERY_FLAG = {
    "--model-dir": ("/model", "/model"),
    "--endpoint": ("ipc:///sock", "ipc:///sock"),
    "--open-endpoint": ("true", True),
    "--device": ("cpu", "cpu"),
    "--dtype": ("bfloat16", "bfloat16"),
    "--quantization": ("int8", "int8"),
    "--decoder": ("transformers", "transformers"),
    "--native-path": ("avx2", "avx2"),
    "--kv-dtype": ("fp8", "fp8"),
    "--kv-cache-bytes": ("1048576", 1 << 20),
    "--max-model-len": ("100", 100),
    "--max-num-seqs": ("7", 7),
    "--max-batched-tokens": ("300", 300),
    "--max-waiting": ("9", 9),
    "--num-threads": ("3", 3),
    "--max-adapters": ("5", 5),
    "--max-adapter-rank": ("64", 64),
    "--adapter-device-bytes": ("2GiB", 2 << 30),
    "--adapter-host-bytes": ("3 MiB", 3 << 20),
    "--adapter-store": ("s3://bucket/prefix", "s3://bucket/prefix"),
    "--adapter-cache-dir": ("/cache", "/cache"),
    "--adapter-cache-bytes": ("4GiB", 4 << 30),
    "--gpu-memory-fraction": ("0.5", 0.5),
    "--num-draft-tokens": ("4", 4),
    "--batch-lengthening": ("0.3", 0.3),
    "--batch-step-ms": ("20", 20),
    "--batch-share": ("0.1", 0.1),
}
"""A text for each flag, and the value that the text means. The flags' names are promised: none is ever renamed."""


def test_every_field_has_a_flag_that_sets_it() -> None:
    config = parse_arguments([part for flag, (text, _) in EVERY_FLAG.items() for part in (flag, text)])
    assert {field.flag: getattr(config, field.name) for field in fields_of(EngineConfig)} == {
        flag: value for flag, (_, value) in EVERY_FLAG.items()
    }


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "tcp://0.0.0.0:5555", "ipc://@lorikeet"])
@pytest.mark.parametrize("as_json", [False, True], ids=["flags", "json"])
def test_an_engine_listens_nowhere_that_others_can_reach(
    capsys: pytest.CaptureFixture[str], endpoint: str, as_json: bool
) -> None:
    config = EngineConfig(model_dir="/model", adapter_store="/store", endpoint=endpoint)
    flags = ["--model-dir", "/model", "--adapter-store", "/store", "--endpoint", endpoint]
    with pytest.raises(SystemExit) as left:
        parse_arguments(whole_flag(config) if as_json else flags)
    assert left.value.code == 2
    assert f"argument --endpoint: {endpoint!r}" in capsys.readouterr().err


def test_an_engine_listens_where_its_machine_can_reach_it_only_if_that_is_allowed() -> None:
    flags = ["--model-dir", "/model", "--adapter-store", "/store", "--endpoint", "tcp://127.0.0.1:5555"]
    assert parse_arguments([*flags, "--open-endpoint", "true"]).endpoint == "tcp://127.0.0.1:5555"


def test_every_field_is_documented_but_what_tests_vary_and_what_agents_say() -> None:
    documented = [field.name for field in fields_of(EngineConfig)]
    assert set(EngineConfig.__struct_fields__) - set(documented) == {"block_size", "link_dir", "unattended_s"}
    assert all(field.doc.endswith(".") for field in fields_of(EngineConfig))


def test_the_help_of_each_flag_is_the_documentation_of_its_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse_arguments(["--help"])
    assert left.value.code == 0
    shown = "".join(capsys.readouterr().out.split())
    for field in fields_of(EngineConfig):
        assert field.flag in shown
        assert "".join(field.doc.split()) in shown


def test_flags_that_are_left_out_have_the_defaults_of_the_struct() -> None:
    config = parse_arguments(REQUIRED)
    assert config == EngineConfig(model_dir="/model", adapter_store="/store", endpoint="ipc:///sock")


def test_a_whole_struct_travels_to_a_child_as_one_argument() -> None:
    config = parse_arguments([part for flag, (text, _) in EVERY_FLAG.items() for part in (flag, text)])
    for each in (config, parse_arguments(REQUIRED)):
        flag, text = whole_flag(each)
        assert parse_arguments([flag, text]) == each


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--max-num-seqs", "0"], "argument --max-num-seqs: '0': Expected a whole number >= 1"),
        (["--max-num-seqs", "many"], "argument --max-num-seqs: 'many': Expected a whole number"),
        (["--device", "tpu"], "argument --device: 'tpu': Expected one of auto, cpu, cuda"),
        (["--kv-cache-bytes", "2 parsecs"], "argument --kv-cache-bytes: '2 parsecs': Expected a number of bytes"),
        (["--gpu-memory-fraction", "2"], "argument --gpu-memory-fraction: '2': Expected a number <= 1"),
        (["--threads", "2"], "unrecognized arguments: --threads 2"),
        (["--config", "{}"], "--config takes the place of all other flags"),
    ],
)
def test_a_wrong_flag_is_named(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse_arguments([*REQUIRED, *arguments])
    assert left.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_num_seqs": 0}, "Expected `int` >= 1 - at `$.max_num_seqs`"),
        ({"max_num_seq": 1}, "unknown field `max_num_seq`"),
        ({"endpoint": None}, "Expected `str`, got `null` - at `$.endpoint`"),
    ],
)
def test_a_wrong_field_of_a_struct_in_one_argument_is_named(
    change: dict[str, object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = msgspec.to_builtins(parse_arguments(REQUIRED)) | change
    with pytest.raises(SystemExit):
        parse_arguments(["--config", msgspec.json.encode(whole).decode()])
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_missing_flag_without_a_default_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--model-dir", "/model"])
    assert "required: --endpoint, --adapter-store" in capsys.readouterr().err
