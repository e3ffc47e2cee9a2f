import ast
import inspect
import pathlib
import pickle

import pytest

from roost import config
from roost.config import Config


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    monkeypatch.setattr(config, "_store", config._Store())


def test_defaults_are_what_the_documents_promise():
    limits = Config()
    assert limits.message_bytes_max == 4 << 30
    assert limits.queue_bytes_max == 64 << 20
    assert limits.queue_messages_max == 65_536
    assert limits.segment_bytes_min == 256 << 10
    assert (limits.grace_s, limits.sigterm_s, limits.cleanup_timeout_s) == (5, 3, 3)
    assert limits.start_timeout_s == 120
    assert limits.echo_hold_s == 0.02


def test_every_limit_says_its_unit_and_why():
    tree = ast.parse(inspect.getsource(Config)).body[0]
    assert isinstance(tree, ast.ClassDef)
    reasons = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(after, ast.Expr), f"{ast.unparse(field)} gives no reason"
            reasons[ast.unparse(field.target)] = ast.literal_eval(after.value)
    assert tuple(reasons) == Config._field_names
    for name in reasons:
        assert name.endswith(("_s", "_max", "_min")), name


def test_configure_knows_every_limit():
    # The typed keywords exist for type checkers only, so they are read from the source.
    tree = ast.parse(inspect.getsource(config))
    changes = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "_Changes")
    fields = {
        ast.unparse(node.target): ast.unparse(node.annotation)
        for node in changes.body
        if isinstance(node, ast.AnnAssign)
    }
    assert fields == dict(Config.__annotations__)


def test_round_trips_as_plain_builtins():
    limits = Config(grace_s=9, message_bytes_max=1 << 20)
    plain = limits.as_builtins()
    assert {type(value) for value in plain.values()} == {int, float}
    assert Config.from_builtins(plain) == limits
    assert pickle.loads(pickle.dumps(limits)) == limits


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"grace_s": 0}, ValueError, "Config grace_s=0 must be greater than 0; give seconds"),
        ({"grace_s": -1}, ValueError, "Config grace_s=-1 must be greater than 0"),
        ({"grace_s": float("inf")}, ValueError, "not finite"),
        ({"message_bytes_max": 0}, ValueError, "message_bytes_max=0 is below 1; give at least 1"),
        ({"message_bytes_max": 1.5}, TypeError, "must be a whole number, not 1.5"),
        ({"grace_s": "5"}, TypeError, "must be a number, not '5'"),
    ],
)
def test_refuses_limits_that_make_no_sense(changes, error, text):
    with pytest.raises(error, match=text):
        Config(**changes)
    with pytest.raises(error, match=text):
        config.configure(**changes)
    assert config.current() == Config()


def test_configure_adds_up_until_first_use():
    config.configure(grace_s=9)
    config.configure(sigterm_s=1)
    assert config.current() == Config(grace_s=9, sigterm_s=1)
    with pytest.raises(RuntimeError, match=r"after Roost's first use.*before spawning anything"):
        config.configure(grace_s=5)
    with pytest.raises(RuntimeError, match="config= came after"):
        config.use(Config())
    config.release()
    config.configure(grace_s=4)
    assert config.current() == Config(grace_s=4, sigterm_s=1)


def test_use_takes_a_whole_config():
    config.configure(grace_s=9)
    config.use(Config(sigterm_s=1))
    assert config.current() == Config(sigterm_s=1)


def test_every_limit_is_read_somewhere():
    package = pathlib.Path(config.__file__).parent
    sources = [path.read_text() for path in package.glob("*.py") if path.name != "config.py"]
    sources += [path.read_text() for path in (package.parents[1] / "rust/roost-py/src").rglob("*.rs")]
    assert [name for name in Config._field_names if not any(name in source for source in sources)] == []


def test_a_program_has_its_config_to_itself():
    config.configure(grace_s=9)
    with config.using(Config(sigterm_s=1)):
        assert config.current() == Config(sigterm_s=1)
        config.release()
    assert config.current() == Config(grace_s=9)
    config.release()
    with pytest.raises(ZeroDivisionError), config.using(Config()):
        raise ZeroDivisionError
    assert config.current() == Config(grace_s=9)


def test_unknown_limit_lists_the_known_ones():
    with pytest.raises(TypeError, match="no limit 'grace'; it has message_bytes_max, "):
        config.configure(grace=5)
