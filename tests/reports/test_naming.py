"""Names by a language model: prompts, checked answers, records, and a server on this machine."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.errors import ConfigError, NamingWarning
from torch_lntm.models import TopicModel, ctm
from torch_lntm.reports.chat import ChatServer

WORDS = tuple(f"word{v}" for v in range(12))


def make_model() -> TopicModel:
    probs = torch.rand(3, 12, generator=torch.Generator().manual_seed(0)) + 0.01
    return ctm(3, 12, vocabulary=WORDS, topics=probs / probs.sum(1, keepdim=True))


@pytest.fixture
def documents() -> tuple[TopicModel, Any]:
    model = make_model()
    return model, model.generate([15] * 20, seed=0)[0]


class Answering:
    """A function that gives answers in turn, and keeps the prompts."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.prompts, self.model = iter(answers), list[str](), "known"

    def __call__(self, prompt: str) -> Any:
        self.prompts.append(prompt)
        return next(self.answers)


def test_topics_get_names_with_records_that_are_saved(documents: Any, tmp_path: Any) -> None:
    model, corpus = documents
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ask = Answering(' "Economy." ', "<think>Is it\nwar?</think>\n War and peace", "Trade")
    ask.model = "small"
    names = lntm.name_topics(model, corpus, ask)
    assert names == ("Economy", "War and peace", "Trade")
    record = model.name_records[1]
    assert (record.topic, record.name, record.source) == (1, "War and peace", "small")
    assert record.prompt == ask.prompts[1]
    assert record.answer.startswith("<think>")
    folder = lntm.save_model(model, tmp_path / "model")
    loaded = lntm.load_model(folder)
    assert loaded.name_records == model.name_records
    assert "`names of topics by`: `small`" in (folder / "README.md").read_text()
    assert all(torch.equal(before[name], x) for name, x in loaded.state_dict().items())
    model.topic_names = {1: "war and peace", 2: "Trade"}
    assert [record.topic for record in model.name_records] == [2]


def test_a_prompt_has_words_documents_and_other_names(documents: Any) -> None:
    model, corpus = documents
    model.topic_names = {0: "Economy"}
    texts = [f'Text "{d}" with\na line <b> \\' for d in range(20)]
    ask = Answering("War", "Trade")
    lntm.name_topics(model, corpus, ask, texts=texts, num_docs=2, top_n=4, language="French")
    labels = lntm.reports.label_topics(model, corpus, top_n=4)[1]
    for said in ("in French", ", ".join(labels.frex), ", ".join(labels.probability)):
        assert said in ask.prompts[0]
    quoted = re.findall(r"^\d\. \"Text '\d+' with a line <b>  \"$", ask.prompts[0], re.MULTILINE)
    assert len(quoted) == 2
    assert "names: Economy." in ask.prompts[0]
    assert "names: Economy; War." in ask.prompts[1]
    words_only = Answering("X")
    lntm.name_topics(model, corpus, words_only, topics=["War"], num_docs=0)
    assert "Documents" not in words_only.prompts[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("economy", "another topic has this name"),
        ("<b>War</b>", "markup"),
        ("=SUM(A1)", "markup"),
        ("War\nand peace", "single line"),
        ("a b c d e f g h i", "more than 8 words"),
        ("War\u202e", "printable"),
        ("\x1b]0;x\x07", "special characters|printable"),
        ("17", "numbers denote topics"),
        ("", "single line|printable"),
        (None, "not a short text"),
    ],
)
def test_unsuitable_answers_are_asked_again_with_the_reason(
    answer: Any, reason: str, documents: Any
) -> None:
    model, corpus = documents
    model.topic_names = ["Economy", "Trade", None]
    ask = Answering(answer, "War")
    assert lntm.name_topics(model, corpus, ask, num_docs=0)[2] == "War"
    assert re.search(f"refused: .*({reason})", ask.prompts[1])


def test_topics_without_a_suitable_answer_keep_their_names(documents: Any) -> None:
    model, corpus = documents
    with pytest.warns(NamingWarning, match="no suitable name for topic 1 "):
        names = lntm.name_topics(model, corpus, Answering("A", "<b>", "<i>", "", "C"))
    assert names == ("A", "1", "C")
    other = make_model()
    with pytest.raises(ConfigError, match="try another language model"):
        lntm.name_topics(other, corpus, Answering(*["<b>"] * 9))
    assert not other.has_topic_names


def test_a_failure_changes_no_name(documents: Any) -> None:
    model, corpus = documents

    def ask(prompt: str) -> str:
        if "names: A." in prompt:
            raise ConfigError("broken")
        return "A"

    with pytest.raises(ConfigError, match="broken"):
        lntm.name_topics(model, corpus, ask)
    assert not model.has_topic_names
    with pytest.raises(ConfigError, match="expected a function"):
        lntm.name_topics(model, corpus, "http://localhost")  # type: ignore[arg-type]
    model.topic_names = ["A", "B", "C"]
    with pytest.raises(ConfigError, match="all topics have names"):
        lntm.name_topics(model, corpus, ask)


@pytest.mark.parametrize("change", [{"topic": 3}, {"prompt": 5}, None])
def test_damaged_records_are_refused(change: Any, documents: Any, tmp_path: Any) -> None:
    model, corpus = documents
    lntm.name_topics(model, corpus, Answering("A", "B", "C"), num_docs=0)
    folder = lntm.save_model(model, tmp_path / "model")
    records = json.loads((folder / "names.json").read_text())
    damaged = [{**records[0], **change}] if change else {"a": 1}
    (folder / "names.json").write_text(json.dumps(damaged))
    with pytest.raises(ConfigError, match=r"names\.json: "):
        lntm.load_model(folder)


# -- a server on this machine ------------------------------------------------------------------

ANSWER = b'{"choices": [{"message": {"content": "%s"}}]}'
#: Status and content of a server's answers, by its mode.
ANSWERS = {
    "refuse": (401, b"no \x1b[31mkey\n Bearer secret-123 or Bearer secret-" + b"x" * 1000),
    "busy": (503, b"try \x1b[31mlater\n" + b"x" * 1000),
    "redirect": (302, b""),
    "html": (200, b"<html>"),
    "empty": (200, b'{"choices": []}'),
    "number": (200, b'{"choices": [{"message": {"content": 5}}]}'),
    "deep": (200, b"[" * 100_000),
    "huge": (200, b" " * 3_000_000),
    "echo": (200, ANSWER % b"secret-123"),
}


class Server(ThreadingHTTPServer):
    """A server of chat completions whose behaviour ``mode`` names."""

    daemon_threads = True
    mode = "good"
    requests: list[tuple[str, dict[str, str], dict[str, Any]]]

    def handle_error(self, *args: Any) -> None:
        """A client that hangs up is part of some tests."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        good = 200, ANSWER % f"Name {len(self.server.requests)}".encode()
        status, content = ANSWERS.get(self.server.mode, good)
        self.send_response(status)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as found:
        found.requests = []
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/v1"


def test_a_server_answers_a_prompt(server: Server) -> None:
    ask = ChatServer(address(server), "small", key="secret")
    assert ask("Hello\u00e9") == "Name 1"
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert body["model"] == "small"
    assert body["messages"] == [{"role": "user", "content": "Hello\u00e9"}]
    assert "secret" not in repr(ask)
    assert ChatServer(f"{address(server)}/chat/completions", "small")("x") == "Name 2"
    assert server.requests[1][0] == "/v1/chat/completions"
    assert "Authorization" not in server.requests[1][1]


@pytest.mark.parametrize("mode", ANSWERS)
def test_a_server_that_misbehaves_is_reported(mode: str, server: Server) -> None:
    server.mode = mode
    ask = ChatServer(address(server), "small", key="secret-123", timeout=20)
    said = {"refuse": r"answers 401 \(…\)", "busy": r"answers 503 \(try \[31mlater x+\)"}
    said["redirect"] = "answers 302"
    with pytest.raises(ConfigError, match=said.get(mode, "gives no chat completion")) as found:
        ask("text")
    assert "secret" not in str(found.value)
    assert str(found.value).startswith(address(server))
    assert str(found.value).isprintable()
    assert len(server.requests) == 1


DRIPS = {
    "silence": (b"", b""),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
    "body": (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    "error": (b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n", b" "),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRIPS)
def test_the_time_limit_holds_for_the_whole_answer(kind: str) -> None:
    beginning, piece = DRIPS[kind]
    closed = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(0.05)
        try:
            connection.sendall(beginning)
            while True:
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(65536):
                        break
                connection.sendall(piece)
        except OSError:
            pass
        closed.set()
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        ask = ChatServer(f"http://127.0.0.1:{listener.getsockname()[1]}", "small", timeout=0.4)
        start = time.monotonic()
        with pytest.raises(ConfigError, match=r"gives no answer within 0\.4 seconds"):
            ask("text")
        assert time.monotonic() - start < 3
        assert closed.wait(10)  # the connection is closed too


def test_a_proxy_gets_no_texts_for_this_machine(server: Server, monkeypatch: Any) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ChatServer(address(server), "small")("x") == "Name 1"


def test_a_missing_server_and_unsuitable_addresses_are_reported() -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        ChatServer("http://127.0.0.1:9/v1", "small")("text")
    urls: list[Any] = ["file:///etc/passwd", "localhost:11434", "http://", "http://a b/v1", 5]
    for url in [*urls, "http://me:secret@host/v1"]:
        with pytest.raises(ConfigError, match="expected one such as") as found:
            ChatServer(url, "small")
        assert "secret" not in str(found.value)


def test_the_command_names_topics_by_a_server(
    server: Server, tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", "secret")
    fit = ["fit", "example", "--out", "run", "--num-topics", "3", "--max-epochs", "2"]
    assert main(fit) == 0
    before = lntm.load_run("run").model.state_dict()
    assert main(["names", "run", "--set", "1=mine"]) == 0
    assert not server.requests
    options = ["--names-by", address(server), "--names-model", "small", "--key-variable", "MY_KEY"]
    assert main(["names", "run", *options]) == 0
    assert "sending words of topics and excerpts of documents to" in capsys.readouterr().err
    run = lntm.load_run("run")
    assert run.model.topic_names == ("Name 1", "mine", "Name 2")
    assert [record.source for record in run.model.name_records] == ["small", "small"]
    assert all(torch.equal(before[name], x) for name, x in run.model.state_dict().items())
    assert len(server.requests) == 2
    assert "1. " in server.requests[0][2]["messages"][0]["content"]
    assert main(["report", "run", "--source", "guide", "--num-draws", "2"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The language model small named 2 of the topics" in page
    for lacking in options[:2], options[2:]:
        assert main(["names", "run", *lacking]) == 1
        assert "give both" in capsys.readouterr().err
    server.mode = "refuse"
    assert main(["names", "run", "--clear", *options]) == 1
    assert "answers 401" in capsys.readouterr().err
