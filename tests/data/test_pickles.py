"""Pickles: arrays come out, code never runs."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.data import open_parts, open_predictions

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 3)).astype(np.float32)
LABELS = RNG.integers(0, 3, (6, 1)).astype(np.uint8)


def dump(path: Path, content: Any, protocol: int | None = None) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2"])
def test_every_protocol_order_and_byte_order(tmp_path: Path, protocol: int, order: str, dtype: str) -> None:
    logits = np.asarray(LOGITS, dtype=dtype, order=order)
    predictions = open_predictions(dump(tmp_path / "a.p", (logits, LABELS), protocol))
    np.testing.assert_array_equal(predictions.logits, logits)
    np.testing.assert_array_equal(predictions.labels, LABELS[:, 0])
    assert predictions.kind == "logits"
    assert predictions.dtype.isnative


def test_the_layout_of_published_logits(tmp_path: Path) -> None:
    path = dump(tmp_path / "resnet.p", ((LOGITS, LABELS), (LOGITS[:4] + 1, LABELS[:4])))
    np.testing.assert_array_equal(open_predictions(f"{path}#val").logits, LOGITS)
    assert open_predictions(f"{path}#test").n == 4
    assert {name: part.n for name, part in open_parts(path).items()} == {"val": 6, "test": 4}
    with pytest.raises(InputError, match=r"only .*test_logits.*#test \(parts: test, val\)"):
        open_predictions(path)


def test_dictionaries_lists_and_numbers(tmp_path: Path) -> None:
    content = collections.OrderedDict(
        probabilities=[[0.25, 0.75], [0.5, 0.5]],
        labels=[np.int64(1), 0],
        class_names=["no", "yes"],
        epoch=3,
        note=None,
    )
    predictions = open_predictions(dump(tmp_path / "a.pickle", content))
    assert (predictions.kind, predictions.class_names) == ("probabilities", ("no", "yes"))
    np.testing.assert_array_equal(predictions.labels, [1, 0])


def test_a_tuple_can_be_declared_to_hold_probabilities(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.p", (np.full((2, 4), 0.25), np.array([0, 3])))
    assert open_predictions(path, kind="probabilities").kind == "probabilities"


class Payload:
    """Runs a command when unpickled by pickle itself."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_payload_does_not_run(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    command = Payload(os.mkdir, str(victim))
    path = dump(tmp_path / "a.p", command, protocol)
    pickle.loads(path.read_bytes())
    assert victim.is_dir(), "the payload is live: pickle itself runs it"
    victim.rmdir()
    for content in (command, (LOGITS, command), {"logits": LOGITS, "labels": command}, [[command]]):
        dump(path, content, protocol)
        with pytest.raises(InputError, match=r"would call (posix|nt)\.mkdir"):
            open_predictions(path)
        assert not victim.exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'touch victim'\ntR.",
        b"(S'touch victim'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch victim\x85R.",
        b'c__builtin__\neval\n(S\'open("victim","w")\'\ntR.',
        b"cnumpy\nload\n(S'x.npy'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x02cnumpy\ndtype\n(S'O8'\nK\x00K\x01tR}b.",
        b"(cos\nsystem\nS'touch victim'\no.",
        b"cnumpy\nndarray\n)\x81.",
        b"Pcalibrant\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x05\x97.",
    ],
)
def test_hand_made_attacks_do_nothing(tmp_path: Path, payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.p").write_bytes(payload)
    with pytest.raises(InputError):
        open_predictions("a.p")
    assert [path.name for path in tmp_path.iterdir()] == ["a.p"]


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.p", (np.array([[1, None], [2, 3]], dtype=object), np.array([0, 1])))
    with pytest.raises(InputError, match="object"):
        open_predictions(path)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b"abc.",
        b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"abc.",
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
    ],
)
def test_false_lengths_allocate_nothing(tmp_path: Path, payload: bytes) -> None:
    (tmp_path / "a.p").write_bytes(payload)
    with pytest.raises(InputError):
        open_predictions(tmp_path / "a.p")


@pytest.mark.parametrize("bracket", [list, tuple])
def test_content_that_repeats_itself_without_end(tmp_path: Path, bracket: type, deadline: None) -> None:
    bomb: Any = bracket([1, 2])
    for _ in range(45):
        bomb = bracket([bomb, bomb])
    endless: list[Any] = []
    endless.extend([endless, endless])
    wide = [1.0] * 50
    flat = [[wide] * 50] * 50
    for content in (bomb, endless, {"logits": bomb, "labels": [0]}, {"logits": flat, "labels": [0]}):
        path = dump(tmp_path / "a.p", content)
        with pytest.raises(InputError):
            open_predictions(path)


def test_an_array_whose_shape_and_bytes_differ(tmp_path: Path) -> None:
    data = pickle.dumps((LOGITS, LABELS), protocol=2)
    (tmp_path / "a.p").write_bytes(data.replace(b"K\x06K\x03\x86", b"K\x06K\x04\x86"))
    with pytest.raises(InputError):
        open_predictions(tmp_path / "a.p")


def test_other_content_is_described(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.p", [LOGITS, LABELS, LABELS, LABELS])
    with pytest.raises(InputError, match="it holds a list, but it must hold a dictionary of arrays"):
        open_predictions(path)
    with pytest.raises(InputError, match="keys are int"):
        open_predictions(dump(path, {1: LOGITS}))


NEST = b")" + b"2\x86" * 60
"""Instructions for a tuple of two tuples of two tuples …: 2⁶⁰ items when it is hashed, printed or copied."""


@pytest.mark.parametrize(
    "payload",
    [
        b"\x80\x02cnumpy\ndtype\n(S'f4'\ntR(K\x03" + NEST + b"tb.",
        b"\x80\x02c_codecs\nencode\n(S'a'\n" + NEST + b"tR.",
        b"\x80\x02}" + NEST + b"K\x01s.",
        b"\x80\x02(" + NEST + b"K\x01d.",
        b"\x80\x02ccollections\nOrderedDict\n((" + NEST + b"K\x01ttR.",
        b"\x80\x02" + NEST + b"\x82\x01.",
        b"\x80\x02" + NEST + b")R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + NEST + b"NNNtb.",
        b"\x80\x04\x8f(" + NEST + b"\x90.",
    ],
)
def test_nested_values_are_neither_hashed_nor_printed(tmp_path: Path, payload: bytes, deadline: None) -> None:
    (tmp_path / "a.p").write_bytes(payload)
    with pytest.raises(InputError) as raised:
        open_predictions(tmp_path / "a.p")
    assert len(str(raised.value).splitlines()) == 1


def test_one_batch_that_is_listed_very_often_is_not_copied(tmp_path: Path) -> None:
    batch = {"logits": np.zeros((4000, 3)), "labels": np.zeros(4000, dtype=np.int64)}
    path = dump(tmp_path / "a.p", [batch] * 300_000)
    with pytest.raises(InputError, match=r"repeats its content to over \d+ bytes"):
        open_predictions(path)


def test_texts_of_no_length_need_no_data_and_are_refused(tmp_path: Path) -> None:
    data = pickle.dumps(np.zeros(0, dtype="U1"), protocol=4)
    (tmp_path / "a.p").write_bytes(data.replace(b"U1", b"U0").replace(b"K\x00\x85", b"J\x00\x00\x00\x40\x85"))
    with pytest.raises(InputError):
        open_predictions(tmp_path / "a.p")


def test_arrays_that_share_a_dtype_or_appear_twice(tmp_path: Path) -> None:
    big = np.arange(12, dtype=">f4").reshape(4, 3, order="F")
    names = np.array(["no", "yes", "may"], dtype=">U3")
    content = {"logits": big, "labels": np.zeros(4, ">i4"), "again": big, "class_names": names}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = open_predictions(dump(tmp_path / "a.p", content, protocol))
        np.testing.assert_array_equal(found.logits, big)
        np.testing.assert_array_equal(found.extras["again"].read(), big)
        assert found.class_names == ("no", "yes", "may")


def test_a_pickled_table_is_refused_with_the_remedy(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"probability": [0.5], "label": [1]}).to_pickle(tmp_path / "a.pkl")
    with pytest.raises(InputError, match=r"nothing is run; save a table with to_parquet"):
        open_predictions(tmp_path / "a.pkl")
