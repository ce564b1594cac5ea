"""One rule says what is confidential: what is planted in an environment, a URL, options or a command is nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic.events import schema
from elastic.events.log import EventLog
from elastic.events.reading import read_events
from elastic_checkpoint.storage import Scrubber
from elastic_checkpoint.storage.redact import is_confidential, named_in, without_literals, words_of


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD"),
        *("ELASTIC_SECRET", "AZURE_STORAGE_CONNECTION_STRING", "--api-key", "--token", "key", "sharedAccessKey"),
        *("db.password", "authorization", "MYSQL_PWD", "client_secret", "service_account_credentials"),
    ],
)
def test_these_names_say_that_their_value_is_confidential(name: str) -> None:
    assert is_confidential(name)


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer", "--max-tokens", "pad_token", "eos_token_id", "cls_token", "num_key_value_heads", "sort_key"),
        *("author", "PWD", "seed", "batch_size", "nonce", "--lr", "", "-m", "NCCL_DEBUG", "keyboard", "world_size"),
    ],
)
def test_these_do_not(name: str) -> None:
    assert not is_confidential(name)


COMMAND = [
    *("train.py", "s3://me:planted-in-url@bucket/run?X-Signature=planted-signature", "--lr", "0.1"),
    *("--api-key", "planted1", "--token=planted-flag", "--storage", '{"secret": "planted-json", "anon": false}'),
    *("--header", "Authorization: Bearer planted-header", "model.token=planted.hydra", "--resume", "--sort-by", "key"),
]
ENVIRON = {
    "HF_TOKEN": "planted-token",
    "DATABASE": "postgres://reader:planted-database@host:5432/runs",
    "SETTINGS": '{"password": "planted-setting"}',
    "OMP_NUM_THREADS": "4",
}
OPTIONS = {"key": "PLANTEDKEY", "secret": "planted/with+signs", "client_kwargs": {"endpoint_url": "http://host:9000"}}
URL = "s3://writer:planted-of-run@bucket/run"


def scrubber() -> Scrubber:
    return Scrubber(URL, OPTIONS, [*ENVIRON.items(), *words_of(COMMAND)])


def test_nothing_that_is_planted_is_in_a_document() -> None:
    """Nor where it is repeated under a harmless name, or in the midst of a text."""
    said = ["planted1 planted-flag", "of planted-token, planted-database", "planted-setting/planted-json"]
    repeated = {"note": said, "error": f"PLANTEDKEY and {OPTIONS['secret']} refused", "url": URL, "short": "x=1"}
    found = scrubber().document({"command": COMMAND, "environment": ENVIRON, "options": OPTIONS, **repeated})
    text = json.dumps(found).lower()
    assert "planted" not in text
    assert found["command"][2:4] == ["--lr", "0.1"]
    assert found["command"][-3:] == ["--resume", "--sort-by", "key"]
    assert found["environment"]["OMP_NUM_THREADS"] == "4"
    assert found["options"]["client_kwargs"] == {"endpoint_url": "http://host:9000"}


def test_a_number_or_a_word_is_removed_where_its_name_is_and_stays_elsewhere() -> None:
    """`--token 1024`, a password of "none": each of the innocent ones would be blotted out with it."""
    scrub = Scrubber("runs/x", {}, words_of(["--auth", "none", "--token", "1024"]))
    found = scrub.document({"auth": "none", "token": 1024, "words": ["--token", "1024", "nonexistent", "1024 steps"]})
    assert found == {"auth": "***", "token": "***", "words": ["--token", "***", "nonexistent", "1024 steps"]}


def test_no_event_says_what_is_confidential(tmp_path: Path) -> None:
    """What an exception says may be one word; what a script records may be of any kind."""
    log = EventLog(tmp_path, worker_id="planted1-host", scrub=Scrubber("runs/x", {}, [("HF_TOKEN", "planted1-host")]))
    raised = KeyError("planted1-host")
    log.emit(schema.Error(step=1, error=repr(raised)))
    log.emit(schema.Ended(why="planted1-host"))
    log.emit(schema.NotFinite(step=1, why="of planted1-host", signs={"loss": "nan"}, examples=[3]))
    log.emit(schema.ViewFormed(workers=["planted1-host"], shares=[0, 1]))
    log.emit_named("asked", key="x", words=["planted1-host"], of={"a": [{"b": "planted1-host"}]}, failure=raised, n=2)
    error, ended, not_finite, view, asked = (
        {name: fact for name, fact in event.items() if name not in ("t", "worker", "event")}
        for event in read_events(tmp_path)
    )
    assert error == {"step": 1, "error": "KeyError('***')"}
    assert ended == {"why": "***"}
    assert not_finite == {"step": 1, "why": "of ***", "signs": {"loss": "nan"}, "examples": [3]}
    assert view == {"workers": ["planted1-host"], "shares": [0, 1]}, "as its records are named"
    assert asked == {"key": "***", "words": ["***"], "of": {"a": [{"b": "***"}]}, "failure": "'***'", "n": 2}


def test_there_may_be_no_command_line() -> None:
    assert list(words_of([])) == []


@pytest.mark.parametrize(
    "code",
    [
        *("API_KEY = 'PLANTED'", 'api_key: str = "PLANTED"', 'api_key: "str | None" = "PLANTED"', 'TOKEN = f"PLANTED"'),
        *(
            "client_secret = b'PLANTED'",
            'token = ("PLANTED")',
            'self.password = """PLANTED"""',
            "if auth == 'PLANTED':",
        ),
        *('os.environ["HF_TOKEN"] = "PLANTED"', 'environ.setdefault("WANDB_API_KEY", "PLANTED")'),
        *('parser.add_argument("--token", type=str, help="for login", default="PLANTED")', "{'password': 'PLANTED'}"),
        *("-    login(token='PLANTED')\n+    login(token=os.environ['HF_TOKEN'])", "f(a='b', passwd='PLANTED', c='d')"),
        'parser.add_argument("--lr", default=1.0); parser.add_argument("--token", default="PLANTED")',
        *(
            '_API_KEY = "PLANTED"',
            '__password="PLANTED"',
            'token += "PLANTED"',
            '+    token = (\n+        "PLANTED"\n+    )',
        ),
    ],
)
@pytest.mark.parametrize("value", ["Pl-4nt.ed/long+enough", "word"])
def test_literals_under_confidential_names_are_not_kept_with_code(code: str, value: str) -> None:
    weak = value == "word" and "setdefault" in code
    kept, removed = without_literals(code.replace("PLANTED", value))
    assert weak or (kept == code.replace("PLANTED", "***") and [value for _, value in removed] == [value])


@pytest.mark.parametrize(
    "code",
    [
        *('api_key = os.getenv("X", "PLANTED")', "API_KEY = given or 'PLANTED'", 'token = ["PLANTED"]'),
        *('TOKENS_SECRET = {"a": "PLANTED"}', 'token = str("PLANTED")', 'token: Annotated[str, "x"] = "PLANTED"'),
    ],
)
def test_what_looks_like_a_key_on_the_rest_of_the_line_is_not_kept_either(code: str) -> None:
    kept, _ = without_literals(code.replace("PLANTED", "sk-4nt.ed/long"))
    assert kept == code.replace("PLANTED", "***")


@pytest.mark.parametrize(
    "code",
    [
        *("token = tokenizer(text)", "key = 5", "best = max(runs, key='loss')", "columns = ['token', 'label']"),
        *('print("token: ", count, " of ", total)', 'logging.info("auth: " + user + " ok")', '{"pass": "forward"}'),
        *('def read(token: str) -> bytes:\n    """Return what it opens."""', 'class Password:\n    """A secret."""'),
        *("print('password:', hint, 'x')", "token = os.environ['HF_TOKEN']", 'token = line.split(" ")[0]'),
        *('pad_token = "<pad>"', "f(token, 'of a text')", "tokens = ['a', 'b']", "key = lambda run: run['loss']"),
    ],
)
def test_other_code_is_kept(code: str) -> None:
    assert without_literals(code) == (code, [])


def test_a_text_without_an_end_of_a_word_is_read_once() -> None:
    """A search from each of its characters to the end would hold the process for hours."""
    text = "a" * 1_000_000 + " token = 'kept away'"
    assert list(named_in(text)) == without_literals(text)[1] == [("token", "kept away")]
    assert without_literals('"token",' * 20_000)[1] == []
    assert without_literals(("token = " + " " * 2_000) * 200)[1] == []
    assert without_literals("key =" + "\n" * 5_000)[1] == []
    assert without_literals('"a", "b", "key": ' * 60_000)[1] == []
