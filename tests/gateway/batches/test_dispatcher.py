"""A dispatcher with a runner whose answers a test decides: faults, limits, and batches that are given back."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.batches.dispatcher import MAX_BATCHES, MAX_CHECKED, Dispatcher
from gateway.batches.feed import Feed
from gateway.batches.runner import LineReply
from gateway.batches.running import MAX_ATTEMPTS, MAX_FAULTS, MAX_WAITING
from gateway.batches.service import Batch, Batches
from gateway.batches.services import BatchServices
from gateway.db.ledger.usage import UsageEvent
from gateway.db.organization.audit import Author
from gateway.db.pool import UNAVAILABLE, Database
from gateway.domain.batches.line import BatchLine
from gateway.domain.content.keys import ContentKey
from gateway.domain.errors import ENGINE_UNAVAILABLE, BackendFailed, NoReplicaYet, Overloaded
from gateway.domain.tenancy.principal import Principal
from gateway.files.content import FileContent
from gateway.files.pieces import FolderPieces
from gateway.files.service import Files
from gateway.observability.batch_metrics import BatchMetrics
from gateway.support.cipher import Cipher
from gateway.support.paced_calls import PacedCalls
from tests.gateway.batches.jobs import CHAT, chat_line, file_of
from tests.gateway.db.test_tenant_isolation import usage_event
from tests.installation.tenants import Key, make_key
from tests.installation.waiting import until

Answer = Callable[[bytes, BatchLine], LineReply]
DONE = LineReply(status=200, body=b"{}", input_tokens=2, output_tokens=1)


class Runner:
    """A fake runner that answers each line by a function, and counts the runs."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.begun: Counter[str] = Counter()

    async def run(
        self, principal: Principal, endpoint: str, body: bytes, request_id: str, line: BatchLine
    ) -> LineReply:
        self.begun[request_id] += 1
        await asyncio.sleep(0)
        return self._answer(body, line)

    def disown(self, request_id: str, line: BatchLine) -> None:
        """Ignore the line, since this runner bills nobody."""


class Pool:
    """A fake pool that wants any number of lines, or none while is_full is set."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.is_full = is_full

    def take_batch_credit(self) -> bool | None:
        return not self.is_full


class World:
    """One tenant, and the dispatcher of a gateway for its batches."""

    def __init__(self, database: Database, folder: Path, key: Key, dsn: str = "") -> None:
        self.dsn = dsn
        self._folder = folder
        self._database = database
        self._key = key
        self.cipher = Cipher([ContentKey(b"k" * 32)])
        content = FileContent(database, FolderPieces(folder), self.cipher)
        self.files = Files(database, content, self.cipher)
        self.batches = Batches(database, self.cipher)
        self.turns = PacedCalls()
        self._author = Author(
            organization_id=key.organization_id, kind="api_key", id="x", email=None, address="", request_id=""
        )

    @asynccontextmanager
    async def dispatching(self, runner: Runner, **pools: Pool) -> AsyncIterator[None]:
        """Run a dispatcher until the context is left. pools: the pools of base models besides `tiny`."""
        tools = BatchServices(
            database=self._database,
            files=self.files,
            output=self.files.content,
            cipher=self.cipher,
            runner=runner,
            feed=Feed({"tiny": Pool()} | pools),
            max_line_bytes=1 << 20,
            turns=self.turns,
            metrics=BatchMetrics(CollectorRegistry()),
        )
        dispatcher = Dispatcher(tools, "gateway")
        dispatcher.start()
        try:
            yield
        finally:
            await dispatcher.stop()

    def of(self, key: Key) -> World:
        """Return a world over the same database and files for the tenant of another key."""
        return World(self._database, self._folder, key, self.dsn)

    async def create(self, content: bytes) -> Batch:
        project_id = self._key.project_id
        part = await self.files.content.begin(project_id)
        await part.write(content)
        await part.flush()
        file = await self.files.make(project_id, part, name="a.jsonl", purpose="batch", keep_seconds=None)
        return await self.batches.create(
            project_id,
            self._author,
            api_key_id=self._key.id,
            endpoint=CHAT,
            input_file_id=file.id,
            metadata={},
            keep_seconds=None,
        )

    async def cancel(self, batch: Batch) -> None:
        await self.batches.cancel(self._key.project_id, batch.row.id, self._author)

    def usage(self, request_id: str, begun_at: datetime.datetime, attempt: int = 0) -> UsageEvent:
        """Return the usage of an attempt at a line, as a gateway reports it."""
        event = usage_event(request_id, self._key.project_id, attempt)
        return msgspec.structs.replace(
            event,
            organization_id=self._key.organization_id,
            created_at=begun_at,
            finished_at=begun_at,
            service_tier="batch",
        )

    async def status(self, batch: Batch) -> Batch:
        found = await self.batches.get(self._key.project_id, batch.row.id)
        assert found is not None
        return found

    async def ended(self, batch: Batch) -> Batch:
        async def has_ended() -> bool:
            try:
                return (await self.status(batch)).row.ended_at is not None
            except UNAVAILABLE:  # a test cuts all connections, this one as well
                return False

        await until(has_ended, "the batch did not end", pause_s=0.05)
        return await self.status(batch)

    async def text(self, file_id: str) -> str:
        return b"".join([piece async for piece in self.files.read(self._key.project_id, file_id)]).decode()


@pytest.fixture
async def world(dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with await Database.connect(dsn) as database:
        yield World(database, tmp_path / "files", await make_key(dsn, "acme"), dsn)


class GatedFiles(Files):
    """Files of which some cannot be read before a gate opens."""

    def __init__(self, *services: Any) -> None:
        super().__init__(*services)
        self.gate = asyncio.Event()
        self.gated: set[str] = set()
        self.num_reading = self.most_reading = 0

    async def read(self, project_id: str, file_id: str) -> AsyncIterator[bytes]:
        self.num_reading += 1
        self.most_reading = max(self.most_reading, self.num_reading)
        try:
            if file_id in self.gated:
                await self.gate.wait()
            async for piece in super().read(project_id, file_id):
                yield piece
        finally:
            self.num_reading -= 1


async def test_files_that_take_long_to_check_hold_up_neither_lines_nor_ends(world: World, database: Database) -> None:
    ready = await world.create(file_of(chat_line(str(n)) for n in range(9)))
    async with world.dispatching(Runner(lambda body, line: DONE), tiny=Pool(is_full=True)):

        async def is_checked() -> bool:
            return (await world.status(ready)).row.status == "in_progress"

        await until(is_checked, "the file was not checked")
    world.files = files = GatedFiles(database, world.files.content, world.cipher)
    slow = [await world.create(file_of([chat_line(str(n))])) for n in range(MAX_BATCHES + 1)]
    files.gated = {batch.row.input_file_id for batch in slow}
    async with world.dispatching(Runner(lambda body, line: DONE)):
        assert (await world.ended(ready)).row.num_completed == 9
        await world.cancel(slow[0])
        assert (await world.ended(slow[0])).row.status == "cancelled"
        assert {(await world.status(batch)).row.status for batch in slow[1:]} == {"validating"}
        files.gate.set()
        for batch in slow[1:]:
            assert (await world.ended(batch)).row.status == "completed"
    assert files.most_reading == MAX_CHECKED


async def test_faults_of_ours_are_tried_three_times_and_then_are_the_lines_error(world: World) -> None:
    def answer(body: bytes, line: BatchLine) -> LineReply:
        if b"always" in body or (b"twice" in body and line.begun < 2):
            raise BackendFailed("The engine failed.")
        return DONE

    batch = await world.create(file_of([chat_line("a", "always"), chat_line("b", "twice"), chat_line("c", "never")]))
    runner = Runner(answer)
    async with world.dispatching(runner):
        ended = await world.ended(batch)
    row = ended.row
    assert (row.status, row.num_completed, row.num_failed, row.input_tokens) == ("completed", 2, 1, 4)
    assert sorted(runner.begun.values()) == [1, 3, 3]
    assert '"status_code":502' in await world.text(row.error_file_id)


class NotingRunner(Runner):
    """A fake runner that records the models of lines by the time at which they were started."""

    def __init__(self) -> None:
        super().__init__(lambda body, line: DONE)
        self.models: defaultdict[int, list[str]] = defaultdict(list)

    async def run(
        self, principal: Principal, endpoint: str, body: bytes, request_id: str, line: BatchLine
    ) -> LineReply:
        self.models[line.instant_ns].append(msgspec.json.decode(body)["model"])
        return await super().run(principal, endpoint, body, request_id, line)


async def test_lines_of_one_adapter_follow_each_other_and_base_models_take_turns(world: World) -> None:
    models = [f"{base}:a{number}" for number in range(7) for base in ("tiny", "other")]
    lines = [chat_line(str(number), model=models[number % 14]) for number in range(210)]
    batch = await world.create(file_of(lines))
    runner = NotingRunner()
    async with world.dispatching(runner, other=Pool()):
        ended = await world.ended(batch)
    assert ended.row.num_completed == 210
    claims = [models for _, models in sorted(runner.models.items())]
    for base in ("tiny", "other"):
        own = [model for models in claims for model in sorted(models) if model.startswith(base)]
        assert own == sorted(own) and len(own) == 105
    assert Counter(model.partition(":")[0] for model in claims[0]) == {"tiny": 32, "other": 32}


async def test_a_base_model_whose_engines_want_no_line_holds_up_no_other(world: World) -> None:
    lines = [chat_line(str(number), model="full" if number < 150 else "tiny") for number in range(300)]
    batch = await world.create(file_of(lines))
    full, runner = Pool(is_full=True), NotingRunner()
    async with world.dispatching(runner, full=full):

        async def others_are_done() -> bool:
            return (await world.status(batch)).row.num_completed == 150

        await until(others_are_done, lambda: f"only {runner.models} ran", pause_s=0.05)
        assert {model for models in runner.models.values() for model in models} == {"tiny"}
        full.is_full = False
        ended = await world.ended(batch)
    assert (ended.row.num_completed, len(runner.begun)) == (300, 300)


class FullPool(Pool):
    """A fake pool without room, which counts how often it is asked in each turn of the event loop."""

    def __init__(self) -> None:
        super().__init__(is_full=True)
        self.num_asked: list[int] = []
        self._has_turn = False

    def take_batch_credit(self) -> bool | None:
        if not self._has_turn:
            self._has_turn = True
            self.num_asked.append(0)
            asyncio.get_running_loop().call_soon(self._end_turn)
        self.num_asked[-1] += 1
        return super().take_batch_credit()

    def _end_turn(self) -> None:
        self._has_turn = False


async def test_a_full_pool_is_asked_once_for_all_lines_of_a_batch_that_wait(world: World) -> None:
    await world.create(file_of([chat_line(str(number), model="full") for number in range(100)]))
    full = FullPool()

    async def is_asked_again() -> bool:
        return len(full.num_asked) >= 5

    async with world.dispatching(NotingRunner(), full=full):
        await until(is_asked_again, "the pool is not asked again", pause_s=0.05)
    assert set(full.num_asked) == {1}


async def test_a_line_whose_pool_has_no_replica_yet_is_begun_again_until_one_is_there(world: World) -> None:
    asked = 0

    def answer(body: bytes, line: BatchLine) -> LineReply:
        nonlocal asked
        asked += 1
        assert line.begun == 0, "nothing was sent, so that no attempt is to be disowned"
        if asked <= MAX_FAULTS:
            raise NoReplicaYet("One is starting.", retry_after_s=0.01)
        return DONE

    batch = await world.create(file_of([chat_line("a")]))
    async with world.dispatching(Runner(answer)):
        ended = await world.ended(batch)
    assert (ended.row.num_completed, ended.row.has_errors, asked) == (1, False, MAX_FAULTS + 1)


async def test_an_engine_without_room_is_no_fault_of_a_line(world: World) -> None:
    asked = 0

    def answer(body: bytes, line: BatchLine) -> LineReply:
        nonlocal asked
        asked += 1
        assert line.begun == asked - 1, "an engine may have seen the attempt before"
        if asked <= MAX_FAULTS:
            raise Overloaded("All places are taken.", retry_after_s=0.01)
        return DONE

    batch = await world.create(file_of([chat_line("a")]))
    async with world.dispatching(Runner(answer)):
        ended = await world.ended(batch)
    assert (ended.row.num_completed, ended.row.has_errors, asked) == (1, False, MAX_FAULTS + 1)


async def test_an_engine_that_dies_over_a_line_is_a_fault_of_the_line(world: World) -> None:
    asked = 0

    def answer(body: bytes, line: BatchLine) -> LineReply:
        nonlocal asked
        asked += 1
        raise Overloaded("The engine is gone.", code=ENGINE_UNAVAILABLE, retry_after_s=0.01)

    batch = await world.create(file_of([chat_line("a")]))
    async with world.dispatching(Runner(answer)):
        ended = await world.ended(batch)
    assert (ended.row.num_failed, asked) == (1, MAX_FAULTS)


async def test_a_line_for_which_no_engine_ever_has_room_fails_in_the_end(world: World, database: Database) -> None:
    attempts = list[int]()

    def answer(body: bytes, line: BatchLine) -> LineReply:
        attempts.append(line.begun + 1)
        raise Overloaded("All places are taken.", retry_after_s=0.01)

    async def is_nearly_given_up() -> bool:
        async with database.acquire() as conn:
            sql = "UPDATE batch_lines SET attempt = $2 WHERE batch_id = $1 AND state = 'waiting' AND attempt > 0"
            return await conn.execute(sql, batch.row.id, MAX_ATTEMPTS - 2) == "UPDATE 1"

    batch = await world.create(file_of([chat_line("a")]))
    async with world.dispatching(Runner(answer)):
        await until(is_nearly_given_up, "the line is not begun again", pause_s=0.01)
        ended = await world.ended(batch)
    assert (ended.row.num_failed, attempts[-2:]) == (1, [MAX_ATTEMPTS - 1, MAX_ATTEMPTS])


async def test_a_gateway_that_stops_gives_its_batches_back_with_what_was_done(world: World) -> None:
    stuck = asyncio.Event()

    class Slow(Runner):
        async def run(self, *asked: object) -> LineReply:
            if b"slow" in asked[2]:  # type: ignore[operator]
                await stuck.wait()
            return await super().run(*asked)  # type: ignore[arg-type]

    batch = await world.create(file_of([chat_line("a", "quick"), chat_line("b", "slow")]))
    async with world.dispatching(Slow(lambda body, line: DONE)):

        async def half_is_done() -> bool:
            return (await world.status(batch)).row.num_completed == 1

        await until(half_is_done, "nothing was done", pause_s=0.05)
    runner = Runner(lambda body, line: DONE)
    async with world.dispatching(runner):
        ended = await world.ended(batch)
    assert (ended.row.num_completed, ended.row.has_errors, sum(runner.begun.values())) == (2, False, 1)


async def test_a_file_that_cannot_be_checked_in_time_fails_the_batch(world: World, dsn: str) -> None:
    batch = await world.create(file_of([chat_line("a")]))
    async with await Database.connect(dsn) as database, database.acquire() as conn:
        await conn.execute("UPDATE batches SET expires_at = now()")
    async with world.dispatching(Runner(lambda body, line: DONE)):
        ended = await world.ended(batch)
    assert (ended.row.status, ended.errors[0].code) == ("failed", "batch_expired")


async def test_results_are_kept_while_the_database_is_away(world: World, dsn: str) -> None:
    """All connections to the database end while the first lines run: no line runs twice, and each counts once."""
    batch = await world.create(file_of([chat_line(str(n)) for n in range(20)]))

    class Cutting(Runner):
        has_cut = False

        async def run(self, *asked: Any) -> LineReply:
            if not self.has_cut:
                self.has_cut = True
                conn = await asyncpg.connect(dsn)
                await conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
                await conn.close()
            return await super().run(*asked)

    runner = Cutting(lambda body, line: DONE)
    async with world.dispatching(runner):
        ended = await world.ended(batch)
    assert runner.has_cut
    assert (ended.row.status, ended.row.num_completed, ended.row.num_failed) == ("completed", 20, 0)
    assert set(runner.begun.values()) == {1}


class HeartbeatPool(Pool):
    """A fake pool of one engine, which wants WANTED lines and knows only those that were sent to it."""

    WANTED, EVERY_S = 40, 0.05

    def __init__(self) -> None:
        super().__init__()
        self.num_held = self.most_held = self._credit = 0
        self._beat_at_s = float("-inf")

    def take_batch_credit(self) -> bool | None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._beat_at_s >= self.EVERY_S:
            self._beat_at_s, self._credit = now_s, max(self.WANTED - self.num_held, 0)
        self._credit -= 1
        return self._credit >= 0


class HoldingRunner(Runner):
    """A fake runner of a pool whose lines take the event loop a while to begin, and end once the gate is open."""

    def __init__(self, pool: HeartbeatPool) -> None:
        super().__init__(lambda body, line: DONE)
        self._pool = pool
        self.gate = asyncio.Event()

    async def run(
        self, principal: Principal, endpoint: str, body: bytes, request_id: str, line: BatchLine
    ) -> LineReply:
        time.sleep(0.001)  # noqa: ASYNC251 - the work that holds the loop
        self._pool.num_held += 1
        self._pool.most_held = max(self._pool.most_held, self._pool.num_held)
        try:
            await self.gate.wait()
            return await super().run(principal, endpoint, body, request_id, line)
        finally:
            self._pool.num_held -= 1


async def test_lines_that_wait_for_their_turn_to_begin_take_no_more_places_than_engines_have(world: World) -> None:
    batch = await world.create(file_of(chat_line(str(number), model="paced") for number in range(300)))
    pool = HeartbeatPool()
    runner = HoldingRunner(pool)

    async def is_filled() -> bool:
        return pool.num_held >= pool.WANTED

    async with world.dispatching(runner, paced=pool):
        await until(is_filled, "the engine does not get what it wants", pause_s=0.05)
        await asyncio.sleep(2.0)
        assert pool.most_held <= pool.WANTED + MAX_WAITING
        runner.gate.set()
        assert (await world.ended(batch)).row.num_completed == 300


class CompletedRunner(Runner):
    """A fake runner whose lines an engine completes all at once, and which end in the turns of all lines."""

    def __init__(self, turns: PacedCalls) -> None:
        super().__init__(lambda body, line: DONE)
        self._turns = turns
        self.num_waiting = 0
        self.gate = asyncio.Event()
        self.disowned: list[str] = []

    def disown(self, request_id: str, line: BatchLine) -> None:
        self.disowned.append(request_id)

    async def run(
        self, principal: Principal, endpoint: str, body: bytes, request_id: str, line: BatchLine
    ) -> LineReply:
        self.num_waiting += 1
        await self.gate.wait()
        await self._turns.turn()
        time.sleep(0.001)  # noqa: ASYNC251 - the work that holds the loop
        return await super().run(principal, endpoint, body, request_id, line)


async def test_lines_that_engines_have_completed_end_before_their_batch_is_left(world: World) -> None:
    batch = await world.create(file_of(chat_line(str(number)) for number in range(40)))
    runner = CompletedRunner(world.turns)

    async def is_running() -> bool:
        return runner.num_waiting == 40

    async with world.dispatching(runner):
        await until(is_running, "the lines do not begin")
        runner.gate.set()
        await asyncio.sleep(0)
    assert runner.disowned == []
    assert (await world.status(batch)).row.num_completed == 40
