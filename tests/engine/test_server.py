"""The engine's side of the protocol, over a real socket, with the fake core behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from engine.fake import BATCH_WANTED, FakeCore, TokenOf, fake_token
from engine.mailbox import Drained, Mailbox, ServedElsewhere
from engine.protocol import (
    HEARTBEATS_MISSED,
    PROTOCOL_MINOR,
    PROTOCOL_VERSION,
    Abort,
    AckUsage,
    AdapterStatus,
    BatchTerms,
    EngineLimits,
    Final,
    GenerateRequest,
    Goodbye,
    Heartbeat,
    Hello,
    LoadAdapter,
    Refused,
    SamplingParams,
    Service,
    StepOutputs,
    Submit,
    UnackedUsage,
    Usage,
    Welcome,
    decode_from_gateway,
    encode,
)
from engine.server import EngineServer
from engine.version import VERSION
from tests.engine.gateway import Gateway
from tests.patience import PATIENCE_S

LIMITS = EngineLimits(max_model_len=1000, max_num_seqs=3, max_waiting=2, block_size=16, num_blocks=100)


class Engine:
    """The engine's server on a socket with the fake core behind it, and the gateways of a test."""

    def __init__(
        self, endpoint: str, tokens_per_s: float, unattended_s: float = 0.0, token_of: TokenOf = fake_token
    ) -> None:
        self.endpoint = endpoint
        mailbox = Mailbox()
        self.server = EngineServer(endpoint, "model-digest", LIMITS, mailbox, unattended_s=unattended_s)
        self.core = threading.Thread(target=FakeCore(mailbox, tokens_per_s, token_of=token_of).run, daemon=True)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.core.start()
        self.thread.start()
        self.mailbox = mailbox
        self.gateways: list[Gateway] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def gateway(self) -> Gateway:
        self.gateways.append(Gateway(self.context, self.endpoint))
        return self.gateways[-1]

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.send(Goodbye())  # else the engine waits for them to acknowledge their usage
        self.server.drain()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.core.join(PATIENCE_S)
        self.mailbox.close()
        for gateway in self.gateways:
            gateway.socket.close()
        self.context.term()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(f"ipc://{tmp_path}/e.sock", tokens_per_s=200)
    yield engine
    engine.close()


def request(name: str, max_tokens: int = 4, **changes: object) -> GenerateRequest:
    fields = GenerateRequest(name, [10, 11, 12], SamplingParams(max_tokens), tenant="t", meter=b"tag")
    return msgspec.structs.replace(fields, **changes)


def test_a_request_gets_its_deltas_and_one_final(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.hello()
    welcome = gateway.receive(Welcome)
    assert (welcome.limits, welcome.model_digest, welcome.credits) == (LIMITS, "model-digest", 5)
    gateway.send(Submit(request("a")))
    tokens, counts, finals = [], [], []
    while not finals:
        outputs = gateway.receive(StepOutputs)
        tokens += [token for delta in outputs.deltas for token in delta.token_ids]
        counts += [delta.num_completion_tokens for delta in outputs.deltas]
        finals += outputs.finals
    assert tokens == [fake_token(request("a"), i) for i in range(4)]
    assert counts == [1, 2, 3, 4]
    (final,) = finals
    assert (final.finish_reason, final.usage.prompt_tokens, final.usage.completion_tokens) == ("length", 3, 4)


def test_the_usage_of_a_traced_request_alone_tells_when_it_arrived(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.hello()
    gateway.receive(Welcome)
    before_ns = time.time_ns()
    gateway.send(Submit(request("a"), f"00-{'a' * 32}-{'b' * 16}-01"))
    gateway.send(Submit(request("b")))
    finals = dict[str, Final]()
    while len(finals) < 2:
        finals |= {each.request_id: each for each in gateway.receive(StepOutputs).finals}
    assert before_ns <= finals["a"].usage.arrived_unix_ns <= time.time_ns()
    assert finals["b"].usage.arrived_unix_ns == 0


def test_an_engine_takes_submissions_with_fields_that_it_does_not_know(engine: Engine) -> None:
    """An engine accepts a submission with a field that it does not know, as one of the version before accepts a
    trace."""
    gateway = engine.gateway()
    gateway.hello()
    gateway.receive(Welcome)
    message = msgspec.msgpack.decode(encode(Submit(request("a"))))
    gateway.socket.send(msgspec.msgpack.encode(message | {"later": "than this version"}))
    while not (finals := gateway.receive(StepOutputs).finals):
        pass
    assert finals[0].error is None


def test_a_gateway_of_a_later_minor_is_welcome_and_told_ours(engine: Engine) -> None:
    gateway = engine.gateway()
    hello = msgspec.msgpack.decode(encode(Hello(PROTOCOL_VERSION, "gateway", "db", PROTOCOL_MINOR + 1)))
    gateway.socket.send(msgspec.msgpack.encode(hello | {"later": "than this version"}))
    welcome = gateway.receive(Welcome)
    assert (welcome.version, welcome.minor, welcome.software) == (PROTOCOL_VERSION, PROTOCOL_MINOR, VERSION)


@pytest.mark.parametrize("place", [("request",), ("request", "sampling")], ids="-".join)
def test_a_request_of_a_later_version_is_refused_alone(engine: Engine, place: tuple[str, ...]) -> None:
    """The gateway of a refused request then asks another replica, and the gateway's other requests here go on."""
    gateway = engine.gateway()
    gateway.hello()
    gateway.receive(Welcome)
    gateway.send(Submit(request("before")))
    message = msgspec.msgpack.decode(encode(Submit(request("later"))))
    inner = message
    for name in place:
        inner = inner[name]
    inner["of_tomorrow"] = 1
    gateway.socket.send(msgspec.msgpack.encode(message))
    finals: dict[str, Final] = {}
    while len(finals) < 2:
        finals |= {final.request_id: final for final in gateway.receive(StepOutputs).finals}
    assert finals["before"].error is None
    error = finals["later"].error
    assert error is not None and error.code == "draining" and "of_tomorrow" in error.message


def test_a_request_of_a_later_version_before_hello_is_refused_like_any_other(engine: Engine) -> None:
    gateway = engine.gateway()
    message = msgspec.msgpack.decode(encode(Submit(request("later"))))
    message["request"]["of_tomorrow"] = 1
    gateway.socket.send(msgspec.msgpack.encode(message))
    assert "does not decode" in gateway.receive(Refused).reason


def test_another_version_is_refused_with_the_reason(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.hello(version=PROTOCOL_VERSION + 1)
    assert f"version {PROTOCOL_VERSION + 1}" in gateway.receive(Refused).reason


BAD_UTF8 = encode(Hello(PROTOCOL_VERSION, "gateway", "db")).replace(b"gateway", b"gate\xff\xfey")


@pytest.mark.parametrize("frame", [b"", b"\xff\xff", b"not messagepack", encode({"type": "hello"}), BAD_UTF8], ids=str)
def test_a_message_that_does_not_decode_is_refused_and_harms_nobody(engine: Engine, frame: bytes) -> None:
    gateway = engine.gateway()
    gateway.socket.send(frame)
    assert "does not decode" in gateway.receive(Refused).reason
    gateway.hello()
    gateway.receive(Welcome)


def test_work_before_hello_is_refused(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.send(Submit(request("early")))
    assert "hello" in gateway.receive(Refused).reason


def test_more_requests_than_credits_are_refused_with_a_time_to_retry(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.hello()
    for i in range(6):
        gateway.send(Submit(request(f"r{i}", max_tokens=500)))
    error = gateway.final("r5").error
    assert error is not None and error.code == "queue_full" and error.retry_after_s


def taken_over(engine: Engine) -> tuple[Gateway, Gateway]:
    """Return two gateways of one database: the request "r" of the first one runs."""
    one, other = engine.gateway(), engine.gateway()
    for gateway in (one, other):
        gateway.hello("db")
        gateway.receive(Welcome)
    one.send(Submit(request("r", max_tokens=900)))
    one.receive(StepOutputs)
    return one, other


def test_a_request_that_another_gateway_takes_over_starts_once_its_earlier_attempt_has_ended(engine: Engine) -> None:
    one, other = taken_over(engine)
    other.send(Submit(request("r", max_tokens=2, attempt=2)))
    assert one.final("r").finish_reason == "abort"
    final = other.final("r")
    assert (final.finish_reason, final.usage.completion_tokens, final.error) == ("length", 2, None)


def test_no_gateway_takes_over_an_equal_attempt_or_a_request_of_its_own_of_another_database_or_of_a_probe(
    engine: Engine,
) -> None:
    one, other = taken_over(engine)
    stranger, probe, other_probe = engine.gateway(), engine.gateway(), engine.gateway()
    for gateway, database in ((stranger, "another"), (probe, ""), (other_probe, "")):
        gateway.hello(database)
        gateway.receive(Welcome)
    probe.send(Submit(request("p", max_tokens=900)))
    probe.receive(StepOutputs)
    for gateway, request_id, attempt in (
        (other, "r", 0),
        (one, "r", 1),
        (stranger, "r", 1),
        (probe, "r", 1),
        (other_probe, "p", 1),
    ):
        gateway.send(Submit(request(request_id, max_tokens=1, attempt=attempt)))
        error = gateway.final(request_id).error
        assert error is not None and (error.code, error.message) == (
            "invalid_request",
            f"request_id {request_id} is already running",
        )


@pytest.mark.parametrize("way", ["abort", "goodbye", "third gateway"])
def test_a_request_that_waits_for_its_earlier_attempt_can_end_before_it_starts(tmp_path: Path, way: str) -> None:
    goes_on = threading.Event()

    def token_of(request: GenerateRequest, position: int, index: int) -> int:
        if request.attempt == 0 and position:
            goes_on.wait(PATIENCE_S)  # the step lasts until the later attempts have come
        return fake_token(request, position, index)

    engine = Engine(f"ipc://{tmp_path}/e.sock", tokens_per_s=200, token_of=token_of)
    one, other = taken_over(engine)
    third = engine.gateway()
    third.hello("db")
    third.receive(Welcome)
    other.send(Submit(request("r", max_tokens=2, attempt=2)))
    if way == "abort":
        other.send(Abort("r"))
        assert other.final("r") == Final("r", "abort", Usage(prompt_tokens=0, completion_tokens=0))
    else:
        other.hello("db")
        other.receive(Welcome)  # so that the engine has the request before the third gateway's
    if way == "goodbye":
        other.send(Goodbye())
    third.send(Submit(request("r", max_tokens=3, attempt=3)))
    if way == "third gateway":
        error = other.final("r").error
        assert error is not None and (error.code, error.retry_after_s) == ("queue_full", 1.0)
    else:
        third.hello("db")
        third.receive(Welcome)
    goes_on.set()
    assert one.final("r").finish_reason == "abort"
    final = third.final("r")
    assert (final.finish_reason, final.usage.completion_tokens) == ("length", 3)
    engine.close()


def test_batch_work_takes_no_credits_of_others_and_its_own_are_shared_out_in_heartbeats(tmp_path: Path) -> None:
    engine = Engine(f"ipc://{tmp_path}/e.sock", tokens_per_s=20)
    one, other = engine.gateway(), engine.gateway()
    one.hello("one")
    one.receive(Welcome)
    for number in range(6):
        one.send(Submit(request(f"b{number}", max_tokens=400, batch=BatchTerms(), n=2 if number else 1)))
    for number in range(5):
        one.send(Submit(request(f"i{number}", max_tokens=1)))
    ended: list[Final] = []
    while len(ended) < 5:
        ended += one.receive(StepOutputs).finals
    assert {final.finish_reason for final in ended} == {"length"}, "as many as there are credits, and none is refused"
    other.hello("other")
    other.receive(Welcome)
    until_s = time.monotonic() + PATIENCE_S
    credits = [0, 0]

    def beat() -> None:
        nonlocal credits
        assert time.monotonic() < until_s
        credits = [gateway.receive(Heartbeat).batch_credit for gateway in (one, other)]
        for gateway in (one, other):
            gateway.send(Heartbeat(0))

    while credits != [BATCH_WANTED - 11 - 1, 1]:  # a gateway without batch work is offered the least
        beat()
    other.send(Submit(request("other", max_tokens=400, batch=BatchTerms())))
    while credits != [(BATCH_WANTED - 12) / 2] * 2:
        beat()
    for number in range(6):
        one.send(Abort(f"b{number}"))
    while sum(credits) < BATCH_WANTED - 1:
        beat()
    engine.close()


def test_an_aborted_request_still_gets_its_exact_final(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.hello()
    gateway.send(Submit(request("a", sampling=SamplingParams(10_000))))
    seen = 0
    while seen < 6:
        seen = max([seen, *(d.num_completion_tokens for d in gateway.receive(StepOutputs).deltas)])
    gateway.send(Abort("a", num_kept_tokens=5))
    usage = gateway.final("a").usage
    assert usage.completion_tokens == 5
    assert usage.discarded_tokens >= 1


def test_a_gateway_cannot_abort_another_gateways_request(engine: Engine) -> None:
    owner, stranger = engine.gateway(), engine.gateway()
    owner.hello()
    stranger.hello()
    stranger.receive(Welcome)
    owner.send(Submit(request("mine", max_tokens=100)))
    owner.receive(StepOutputs)
    stranger.send(Abort("mine"))
    assert owner.final("mine").finish_reason == "length"


def test_a_gateway_that_no_other_could_follow_may_be_silent_for_longer(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.hello()
    num_missed = 0
    while num_missed <= HEARTBEATS_MISSED + 2:  # the engine sends no heartbeat to a gateway that it has forgotten
        heartbeat = gateway.receive(Heartbeat)
        assert isinstance(heartbeat, Heartbeat)
        num_missed = heartbeat.sequence


@pytest.mark.parametrize("leaves", ["goodbye", "silence"])
def test_the_usage_of_a_gateway_that_left_goes_to_another_of_its_database(engine: Engine, leaves: str) -> None:
    gone, other = engine.gateway(), engine.gateway()
    gone.hello()
    gone.send(Submit(request("done")))
    gone.final("done")
    gone.send(Submit(request("running", max_tokens=100_000, attempt=1)))
    gone.receive(StepOutputs)
    if leaves == "goodbye":
        gone.send(Goodbye())
    other.hello()
    records = {}
    until = time.monotonic() + PATIENCE_S
    while len(records) < 2 and time.monotonic() < until:
        other.send(Heartbeat(0))
        try:
            message = other.receive(UnackedUsage, timeout_s=0.5)
        except TimeoutError:
            continue
        records |= {record.request_id: record for record in message.records}
    assert (records["done"].usage.completion_tokens, records["done"].meter) == (4, b"tag")
    assert (records["running"].finish_reason, records["running"].attempt) == ("abort", 1)


def test_acknowledged_usage_is_forgotten_and_foreign_databases_get_nothing(engine: Engine) -> None:
    gateway, foreign = engine.gateway(), engine.gateway()
    gateway.hello()
    gateway.send(Submit(request("a")))
    gateway.final("a")
    gateway.send(Submit(request("b")))
    gateway.final("b")
    gateway.send(AckUsage([("a", 0)]))
    gateway.send(Goodbye())
    foreign.hello(database_id="another")
    foreign.send(AckUsage([("b", 0)]))
    with pytest.raises(TimeoutError):
        foreign.receive(UnackedUsage, timeout_s=1.5)
    successor = engine.gateway()
    successor.hello()
    assert [record.request_id for record in successor.receive(UnackedUsage).records] == ["b"]


def test_service_elsewhere_in_a_heartbeat_reaches_the_stepping_thread(tmp_path: Path) -> None:
    mailbox = Mailbox()
    endpoint = f"ipc://{tmp_path}/e.sock"
    server = EngineServer(endpoint, "model-digest", LIMITS, mailbox)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    with zmq.Context() as context:
        gateway = Gateway(context, endpoint)
        gateway.send(Heartbeat(0, elsewhere={"stranger": Service(1.0, 2.0, 3.0)}))
        gateway.hello()
        gateway.receive(Welcome)
        gateway.send(Heartbeat(1))
        gateway.send(Heartbeat(2, elsewhere={"t": Service(1.0, 2.0, 3.0)}))
        commands = mailbox.take_commands(PATIENCE_S)
        mailbox.post(Drained())
        thread.join(PATIENCE_S)
        gateway.socket.close()
    mailbox.close()
    assert commands == [ServedElsewhere({"t": Service(1.0, 2.0, 3.0)})]


def test_heartbeats_of_neighboring_versions_understand_each_other() -> None:
    """An engine that does not know of service elsewhere reads a heartbeat with that field as one without, and the
    other way."""

    class Before(msgspec.Struct, tag="heartbeat"):
        sequence: int

    new, old = Heartbeat(1, elsewhere={"t": Service(1.0)}), Before(1)
    assert msgspec.msgpack.decode(encode(new), type=Before) == old
    assert decode_from_gateway(msgspec.msgpack.encode(old)) == Heartbeat(1)
    assert decode_from_gateway(encode(new)) == new


def test_every_gateway_hears_of_a_probe_and_nobody_of_its_usage(engine: Engine) -> None:
    gateways = [engine.gateway(), engine.gateway()]
    for gateway in gateways:
        gateway.hello()
        gateway.receive(Welcome)
    for key in ("1" * 64, "0" * 64):  # the second one rotates by nothing
        gateways[0].send(LoadAdapter(key, pin=False, probe=True))
    for gateway in gateways:
        good, bad = gateway.receive(AdapterStatus), gateway.receive(AdapterStatus)
        assert good.probed and good.error is None and good.probe.max_difference > 0
        assert bad.probed and bad.probe is None
        assert (bad.code, "changes nothing" in bad.error) == ("adapter_rejected", True)
    beats = [gateways[0].receive(Heartbeat), gateways[0].receive(Heartbeat)]
    assert not any(beat.stats.ended_prompt_tokens_total or beat.stats.unacked_usage for beat in beats)


def test_the_usage_of_an_agents_request_is_nobodys(engine: Engine) -> None:
    agent, gateway = engine.gateway(), engine.gateway()
    agent.hello(database_id="")
    agent.send(Submit(request("probe")))
    assert agent.final("probe").usage.completion_tokens == 4
    agent.send(Goodbye())
    gateway.hello()
    gateway.receive(Welcome)
    beat = gateway.receive(Heartbeat)
    assert isinstance(beat, Heartbeat) and beat.stats is not None
    stats = beat.stats
    assert (stats.unacked_usage, stats.ended_prompt_tokens_total, stats.ended_completion_tokens_total) == (0, 0, 0)
    assert stats.generation_tokens_total == 4, "it was computed all the same"


def test_an_engine_ends_when_nobody_was_connected_for_as_long_as_it_was_told(tmp_path: Path) -> None:
    engine = Engine(f"ipc://{tmp_path}/e.sock", tokens_per_s=0, unattended_s=1.5)
    gateway = engine.gateway()
    gateway.hello()
    gateway.receive(Welcome)
    for number in range(3):
        gateway.send(Heartbeat(number))
        gateway.receive(Heartbeat)
    assert engine.thread.is_alive(), "somebody is connected"
    gateway.send(Goodbye())
    engine.thread.join(PATIENCE_S)
    assert not engine.thread.is_alive()
    engine.close()
