"""Every engine: results are folded in the order of the chunks, errors come through, nothing is lost."""

from __future__ import annotations

import pytest

from calibrant.core.errors import InputError
from calibrant.engines.engine import Engine, LocalEngine

ENGINES = ("local", "dask")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    if request.param == "local":
        yield LocalEngine()
        return
    pytest.importorskip("distributed")
    from calibrant.engines.dask import DaskEngine

    made = DaskEngine(n_workers=1)
    yield made
    made.close()


def words(chunk: int) -> str:
    return f"<{chunk}>"


def fail_at_five(chunk: int) -> int:
    if chunk == 5:
        raise InputError("chunk 5 is bad")
    return chunk


def divide(chunk: int) -> float:
    return 1 / chunk


def test_results_are_folded_from_left_to_right(engine):
    assert isinstance(engine, Engine)
    folded = engine.run(words, range(30), lambda left, right: f"({left}{right})")
    expected = "<0>"
    for chunk in range(1, 30):
        expected = f"({expected}<{chunk}>)"
    assert folded == expected


def test_one_chunk_needs_no_merge(engine):
    assert engine.run(words, [7], lambda left, right: pytest.fail("merged")) == "<7>"


def test_bad_input_comes_back_as_it_is_and_the_engine_lives_on(engine):
    with pytest.raises(InputError, match=r"^chunk 5 is bad$"):
        engine.run(fail_at_five, range(20), lambda left, right: left + right)
    assert engine.run(fail_at_five, range(5), lambda left, right: left + right) == 10


def test_other_errors_come_through(engine):
    with pytest.raises(ZeroDivisionError):
        engine.run(divide, [1, 0, 2], lambda left, right: left + right)


def test_an_error_in_merge_comes_through(engine):
    def merge(left, right):
        raise KeyError("merge")

    with pytest.raises(KeyError):
        engine.run(words, range(20), merge)
    assert engine.run(words, [1], merge) == "<1>"
