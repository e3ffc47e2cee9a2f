"""Type variables and `NewType`s of a module that nobody can import, and of one that everybody can."""

import pickle
import sys
import types
import typing

import pytest

from roost import _typing_forms, serialize

FORMS = {
    "T": typing.TypeVar("T"),
    "B": typing.TypeVar("B", bound=int),
    "C": typing.TypeVar("C", int, str),
    "V": typing.TypeVar("V", covariant=True),
    "P": typing.ParamSpec("P"),
    "Ts": typing.TypeVarTuple("Ts"),
    "Id": typing.NewType("Id", int),
    "Ids": typing.NewType("Ids", list[int]),
}
if sys.version_info >= (3, 12):
    FORMS["Alias"] = typing.TypeAliasType("Alias", list[int])


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """A form of a module that is not there when it is loaded."""
    made = FORMS[request.param]
    if not hasattr(made, "__value__"):
        monkeypatch.setattr(made, "__module__", "gone")
    _typing_forms._made.clear()
    return made


def test_it_is_the_same_in_all_that_it_says_and_one_at_the_receiver(form):
    first, second = (serialize.loads(serialize.dumps(form)) for _ in range(2))
    assert first is second
    assert first is not form
    assert type(first) is type(form)
    assert (first.__name__, first.__module__) == (form.__name__, form.__module__)
    assert _typing_forms._details(first) == _typing_forms._details(form)
    if not isinstance(form, typing.TypeVarTuple | typing.ParamSpec):
        assert serialize.loads(serialize.dumps(list[form])) == list[first]


def test_at_home_it_is_the_form_itself(form, monkeypatch):
    home = types.ModuleType(form.__module__)
    setattr(home, form.__name__, form)
    dumped = serialize.dumps(form)
    monkeypatch.setitem(sys.modules, form.__module__, home)
    assert serialize.loads(dumped) is form
    # From now on it is found by its name.
    if form.__module__ != "__main__":
        assert serialize.dumps(form) == pickle.dumps(form, 5)


def test_one_that_was_defined_anew_is_another(monkeypatch):
    made = []
    for bound in (int, str, str):
        T = typing.TypeVar("T", bound=bound)
        monkeypatch.setattr(T, "__module__", "gone")
        made.append(serialize.loads(serialize.dumps(T)))
    assert made[0] is not made[1] is made[2]
    assert [form.__bound__ for form in made] == [int, str, str]
