"""The promises of each table, written out by hand.

Each entry says how rows are reached, that nobody reaches another organization's rows, what bounds rows, when rows go,
and whether a backup holds them. An entry points at something that can be looked up, or is a reason in words.
`test_every_table` fails on a table without an entry, and on an entry that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.adapters import watched_files
from gateway.admin import names as admin_names
from gateway.admin.adapters import adapters as admin_adapters
from gateway.admin.billing import deliveries as admin_deliveries
from gateway.admin.billing import prices as admin_prices
from gateway.admin.experiments import experiments as admin_experiments
from gateway.admin.experiments import layers as admin_layers
from gateway.admin.experiments import metrics as admin_metrics
from gateway.admin.limits import limits as admin_limits
from gateway.admin.limits import webhooks as admin_webhooks
from gateway.admin.organization import key_quota
from gateway.admin.organization import passkeys as admin_passkeys
from gateway.admin.organization import projects as admin_projects
from gateway.admin.pools import pool_bodies
from gateway.admin.pools import pools as admin_pools
from gateway.admin.routing import routes as admin_routes
from gateway.batches import service as kept_batches
from gateway.batches import validator
from gateway.content import background_responses as kept_background
from gateway.content import conversations as kept_conversations
from gateway.db.adapters import adapter_imports
from gateway.db.batches import batches, turns
from gateway.db.batches import work as batch_work
from gateway.db.billing import deliveries
from gateway.db.content import (
    background_responses,
    conversations,
    idempotency,
    request_contents,
    stored_chats,
    stored_responses,
)
from gateway.db.experiments import looks, notes
from gateway.db.experiments.feedback import votes
from gateway.db.files import files, parts, uploads
from gateway.db.ledger import journals, refusals, rollups
from gateway.db.limits import leases, webhooks
from gateway.db.organization import logins, passkeys, projects, users
from gateway.db.pools import backend_keys, host_failures, host_tokens, replicas, scaling_rows
from gateway.db.routing import routes
from gateway.domain.experiments import definition, segment_values
from gateway.files import uploads as kept_uploads
from tests.gateway.adapters import test_watcher
from tests.gateway.admin import test_shares
from tests.gateway.batches import test_batches
from tests.gateway.content import (
    test_background_responses,
    test_conversations,
    test_idempotency,
    test_stored_chats,
    test_stored_responses,
)
from tests.gateway.content import test_request_log as test_contents
from tests.gateway.evaluation import test_whose
from tests.gateway.files import test_files, test_uploads

Test = Callable[..., Any]
"""A reference to a test function that checks the promise."""


class Route(msgspec.Struct, frozen=True):
    """A reference to the admin routes that reach the rows, by words of their paths.

    See MEANT in test_access.py of the admin API's tests, where the matrix of roles is.
    """

    about: tuple[str, ...]


class ForeignId(msgspec.Struct, frozen=True):
    """A reference to the field of `ForeignIds` with which routes are tested: the id or name of a row of another
    organization, or the id of an object to which the row belongs."""

    field: str


class Bound(msgspec.Struct, frozen=True):
    """A reference to a constant that bounds the number of rows, or the time for which rows stay."""

    limit: int
    of: str


class Quota(msgspec.Struct, frozen=True):
    """A reference, by its unit, to a limit that an operator sets, which bounds the rows."""

    unit: str


class Removal(msgspec.Struct, frozen=True):
    """A reference to a statement that removes rows, or the personal data in rows."""

    sql: str


class Reason(msgspec.Struct, frozen=True):
    """The reason, in words, why a promise does not apply, or what else ensures it."""

    why: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The promises of one table."""

    access: Route | Test | Reason
    """The promise on reading and writing rows."""

    foreign: ForeignId | Test | Reason
    """The promise that rows of another organization answer as if they did not exist."""

    bound: Bound | Quota | Reason
    """The promise that nobody can make rows without end."""

    removal: Removal | Reason
    """The promise that rows go when their time is over, or when their project is purged."""

    in_backup: bool = True


INTERNAL = Reason("no route names these rows; gateways alone read and write them")
OF_ADAPTER = Reason("rows are reached under the name of an adapter, which is looked up within the project")
OF_ORGANIZATION = Reason("rows are reached as lists of the caller's own organization: no route takes an id")
BY_HAND = Reason("each is one call of an operator's key or a person in the organization; nothing makes them by itself")
USAGE = Reason("as many as there is usage, which the operator's limits bound")
CONTENT = Reason("counts for the bytes of content of its project, each part as 1 KiB at least")
LEDGER = Reason("never removed: invoices and reports rest on the ledger")
RECORD = Reason("never removed: it records what was done, or what was billed")
WITHDRAWN = Reason(
    "a version that is not in force yet is taken back by withdraw_prices; any other stays, as rows name it"
)
STAYS = Reason("never removed: the ledger or the audit log names it; one short row")

OF_EXPERIMENT = Reason("goes with its experiment, by the foreign key")

REMOVES_LIMITS = Removal(projects._REMOVE_LIMITS)

TABLES: dict[str, Coverage] = {
    # organization
    "organizations": Coverage(access=Route(()), foreign=OF_ORGANIZATION, bound=BY_HAND, removal=STAYS),
    "projects": Coverage(
        access=Route(("projects",)),
        foreign=ForeignId("project_id"),
        bound=BY_HAND,
        removal=Removal(projects._PURGED),
    ),
    "users": Coverage(
        access=Route(("users",)), foreign=ForeignId("user_id"), bound=BY_HAND, removal=Removal(users._REMOVE)
    ),
    "project_members": Coverage(
        access=Route(("projects", "users")),
        foreign=ForeignId("user_id"),
        bound=Reason("one row per user and project"),
        removal=Removal(projects._REMOVE_MEMBERS),
    ),
    "service_accounts": Coverage(
        access=Route(("projects", "service_accounts")),
        foreign=ForeignId("account_id"),
        bound=Bound(key_quota.MAX_SERVICE_ACCOUNTS, "service accounts of a project"),
        removal=Removal(projects._REMOVE_ACCOUNTS),
    ),
    "api_keys": Coverage(
        access=Route(("projects", "api_keys")),
        foreign=ForeignId("key_id"),
        bound=Bound(key_quota.MAX_KEYS, "keys of a project that are not revoked"),
        removal=Removal(projects._FORGET_KEYS),
    ),
    "logins": Coverage(
        access=Route(("users", "logins")),
        foreign=Reason("the id of a login is looked up among the logins of a user, whose id is tested"),
        bound=Reason("one row per sign-in with a right password; old ones go at the next"),
        removal=Removal(logins._DELETE_OLD),
    ),
    "passkeys": Coverage(
        access=Route(("users", "passkeys")),
        foreign=ForeignId("passkey_id"),
        bound=Bound(admin_passkeys.MAX_PASSKEYS, "passkeys of a user"),
        removal=Removal(passkeys._REMOVE),
    ),
    "passkey_challenges": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row for each passkey that was used or added in the last five minutes"),
        removal=Removal(passkeys._FORGET_OLD),
    ),
    "login_failures": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("two rows per e-mail address and network tried; sign-ins are slowed by the password's hash"),
        removal=Removal(logins._FORGET_OLD),
    ),
    "audit_log": Coverage(
        access=Route(("audit_logs",)), foreign=OF_ORGANIZATION, bound=Reason("one row per change"), removal=RECORD
    ),
    "audit_heads": Coverage(
        access=INTERNAL, foreign=INTERNAL, bound=Reason("one row per organization"), removal=RECORD
    ),
    "installation": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row, by its key"),
        removal=Reason("it is the database's identity"),
    ),
    "schema_migrations": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per migration"),
        removal=Reason("it is what the schema is known by"),
    ),
    # adapters
    "bases": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per base model that was ever served"),
        removal=Reason("adapters name it"),
    ),
    "adapters": Coverage(
        access=Route(("projects", "adapters")),
        foreign=ForeignId("name"),
        bound=Quota("storage_bytes"),
        removal=Removal(projects._REMOVE_ADAPTERS),
    ),
    "adapter_versions": Coverage(
        access=Route(("projects", "adapters", "versions")),
        foreign=OF_ADAPTER,
        bound=Quota("storage_bytes"),
        removal=STAYS,
    ),
    "adapter_imports": Coverage(
        access=Route(("projects", "adapter_imports")),
        foreign=ForeignId("import_id"),
        bound=Bound(admin_adapters.MAX_AT_WORK, "imports under way in a project"),
        removal=Removal(adapter_imports._FORGET),
    ),
    "model_aliases": Coverage(
        access=Route(("projects", "aliases")),
        foreign=ForeignId("name"),
        bound=Bound(admin_names.MAX_NAMES, "aliases of a project"),
        removal=Removal(projects._REMOVE_ALIASES),
    ),
    "routes": Coverage(
        access=Route(("projects", "routes")),
        foreign=ForeignId("name"),
        bound=Bound(admin_routes.MAX_ROUTES, "routes of a project"),
        removal=Removal(projects._REMOVE_ROUTES),
    ),
    "route_versions": Coverage(
        access=Route(("projects", "routes", "versions")),
        foreign=ForeignId("name"),
        bound=Bound(routes.MAX_VERSIONS, "versions of a route"),
        removal=Removal(routes._DROP_VERSIONS),
    ),
    "adapter_shares": Coverage(
        access=Route(("projects", "adapters", "shares")),
        foreign=test_shares.test_an_adapter_is_shared_only_with_another_active_project_of_the_organization,
        bound=Reason("one row per adapter and project of the organization"),
        removal=Removal(projects._REMOVE_SHARES),
    ),
    "watched_adapters": Coverage(
        access=INTERNAL,
        foreign=test_watcher.test_a_folder_never_becomes_another_projects,
        bound=Bound(watched_files.MAX_FOLDERS, "folders that are looked at"),
        removal=Reason("never removed: one short row per folder of the operator's disk"),
    ),
    "watched_tenants": Coverage(
        access=INTERNAL,
        foreign=test_watcher.test_a_folder_never_becomes_another_projects,
        bound=Bound(watched_files.MAX_FOLDERS, "folders that are looked at"),
        removal=Reason("never removed, so that no other project gets the folder"),
    ),
    # pools
    "pools": Coverage(
        access=Route(("pools",)),
        foreign=ForeignId("pool_id"),
        bound=Bound(admin_pools.MAX_POOLS, "pools of an organization"),
        removal=STAYS,
    ),
    "pool_revisions": Coverage(access=Route(("pools",)), foreign=ForeignId("pool_id"), bound=BY_HAND, removal=STAYS),
    "pool_grants": Coverage(
        access=Route(("pools",)),
        foreign=ForeignId("pool_id"),
        bound=Bound(pool_bodies.MAX_GRANTS, "grants of a pool"),
        removal=Removal(projects._REMOVE_GRANTS),
    ),
    "backend_keys": Coverage(
        access=Route(("pools",)),
        foreign=ForeignId("pool_id"),
        bound=Reason("one row per pool"),
        removal=Removal(backend_keys._REMOVE),
    ),
    "provider_keys": Coverage(
        access=Route(("projects", "provider_keys")),
        foreign=ForeignId("provider_key_id"),
        bound=Reason("one row per project and pool"),
        removal=Removal(projects._REMOVE_PROVIDER_KEYS),
    ),
    "pool_scaling": Coverage(
        access=Route(("pools",)),
        foreign=ForeignId("pool_id"),
        bound=Reason("one row per pool"),
        removal=Removal(scaling_rows._CLEAR),
    ),
    "pool_loads": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per gateway and pool whose number of replicas follows the load"),
        removal=Removal(scaling_rows._FORGET),
    ),
    "host_failures": Coverage(
        access=Route(("hosts",)),
        foreign=Reason("hosts belong to the installation, not to an organization"),
        bound=Reason("one row per host and revision of a pool"),
        removal=Removal(host_failures._CLEAR),
    ),
    "hosts": Coverage(
        access=Route(("hosts",)),
        foreign=Reason("hosts belong to the installation, not to an organization"),
        bound=Reason("one row per machine with an agent or a gateway"),
        removal=Reason("never removed: one short row per machine of the operator, without its keys once it is gone"),
    ),
    "host_tokens": Coverage(
        access=Route(("hosts", "tokens")),
        foreign=Reason("a token is found by its text alone, and shown once"),
        bound=Reason("made by operators, one for each machine, and gone a day after it ends"),
        removal=Removal(host_tokens._FORGET),
    ),
    "replicas": Coverage(
        access=Route(("replicas",)),
        foreign=ForeignId("replica_id"),
        bound=Reason("as many as the operator wants to run, and those that stopped lately"),
        removal=Removal(replicas._FORGET),
    ),
    # limits
    "limits": Coverage(
        access=Route(("limits",)),
        foreign=ForeignId("limit_id"),
        bound=Bound(admin_limits.MAX_LIMITS, "limits of a project or of an organization itself"),
        removal=REMOVES_LIMITS,
    ),
    "limit_accounts": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per limit and window"),
        removal=Removal(leases._CLEAN_UP),
    ),
    "limit_gateways": Coverage(
        access=INTERNAL, foreign=INTERNAL, bound=Reason("one row per gateway"), removal=Removal(leases._BEAT)
    ),
    "limit_leases": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per limit, window and gateway"),
        removal=Removal(leases._DELETE),
    ),
    "limit_alerts": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per limit, window and threshold"),
        removal=Removal(webhooks._FORGET_ALERTS),
    ),
    "webhooks": Coverage(
        access=Route(("webhooks",)),
        foreign=ForeignId("webhook_id"),
        bound=Bound(admin_webhooks.MAX_WEBHOOKS, "webhooks of an organization"),
        removal=Removal(webhooks._REMOVE),
    ),
    "webhook_deliveries": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per webhook and alert or ended batch, all of which are bounded"),
        removal=Removal(webhooks._FORGET_DELIVERIES),
    ),
    # ledger
    "ledger": Coverage(
        access=Route(("projects", "requests")),
        foreign=ForeignId("project_id"),
        bound=USAGE,
        removal=LEDGER,
    ),
    "rollup_queue": Coverage(access=INTERNAL, foreign=INTERNAL, bound=USAGE, removal=Removal(rollups._ROLL_UP)),
    "usage_rollups": Coverage(
        access=Route(("usage", "completions")),
        foreign=OF_ORGANIZATION,
        bound=USAGE,
        removal=LEDGER,
    ),
    "period_sums": Coverage(
        access=Route(("projects", "invoices")),
        foreign=ForeignId("project_id"),
        bound=USAGE,
        removal=LEDGER,
    ),
    "journals": Coverage(
        access=Route(("reconciliation",)),
        foreign=Reason("journals belong to the installation, not to an organization"),
        bound=Reason("one row per journal folder"),
        removal=Removal(journals._FORGET),
    ),
    "engine_usage": Coverage(
        access=Route(("reconciliation",)),
        foreign=Reason("engines belong to the installation, not to an organization"),
        bound=Reason("one row per engine and journal"),
        removal=Removal(journals._FORGET_ENGINES),
    ),
    # billing
    "price_versions": Coverage(access=Route(("prices",)), foreign=OF_ORGANIZATION, bound=BY_HAND, removal=WITHDRAWN),
    "prices": Coverage(
        access=Route(("prices",)),
        foreign=OF_ORGANIZATION,
        bound=Bound(admin_prices.MAX_ENTRIES, "entries of a version"),
        removal=WITHDRAWN,
    ),
    "price_discounts": Coverage(
        access=Route(("prices",)),
        foreign=OF_ORGANIZATION,
        bound=Bound(admin_prices.MAX_DISCOUNTS, "discounts of a version"),
        removal=WITHDRAWN,
    ),
    "billing_periods": Coverage(
        access=Route(("periods",)),
        foreign=OF_ORGANIZATION,
        bound=Reason("one row per organization and month"),
        removal=RECORD,
    ),
    "period_names": Coverage(
        access=INTERNAL, foreign=INTERNAL, bound=Reason("one row per object and closed month"), removal=RECORD
    ),
    "stripe_customers": Coverage(
        access=Route(("projects", "stripe_customer")),
        foreign=ForeignId("project_id"),
        bound=Reason("one row per project"),
        removal=Removal(deliveries._REMOVE_CUSTOMER),
    ),
    "period_stripe_customers": Coverage(
        access=INTERNAL, foreign=INTERNAL, bound=Reason("one row per project and closed month"), removal=RECORD
    ),
    "credit_grants": Coverage(
        access=Route(("projects", "credits")), foreign=ForeignId("project_id"), bound=BY_HAND, removal=RECORD
    ),
    "credit_draws": Coverage(
        access=Route(("projects", "credits")),
        foreign=ForeignId("project_id"),
        bound=Reason("one row per grant and month"),
        removal=RECORD,
    ),
    "invoices": Coverage(
        access=Route(("projects", "invoices")),
        foreign=ForeignId("project_id"),
        bound=Reason("one row per project and month"),
        removal=RECORD,
    ),
    "deliveries": Coverage(
        access=Route(("deliveries",)),
        foreign=ForeignId("delivery_id"),
        bound=Bound(admin_deliveries.MAX_DELIVERIES, "deliveries of an organization"),
        removal=Removal(deliveries._REMOVE),
    ),
    "delivery_runs": Coverage(
        access=Route(("deliveries",)),
        foreign=ForeignId("delivery_id"),
        bound=Reason("one row per delivery and day or month"),
        removal=Reason("goes with its delivery, by the foreign key"),
    ),
    # content
    "content_keys": Coverage(
        access=INTERNAL, foreign=INTERNAL, bound=Reason("one row per key of the operator"), removal=STAYS
    ),
    "idempotency_keys": Coverage(
        access=Reason("a key of the project that sent it, by the request's own guard"),
        foreign=test_idempotency.test_another_projects_key_is_another_key,
        bound=Reason("as many as there are requests of a day, which limits bound"),
        removal=Removal(idempotency._EXPIRE),
    ),
    "kept_replies": Coverage(
        access=Reason("a key of the project that sent the request, by the request's own guard"),
        foreign=test_idempotency.test_another_projects_key_is_another_key,
        bound=Reason("as many as there are requests of a day, which limits bound; no large reply is kept"),
        removal=Removal(idempotency._DROP_FORBIDDEN),
        in_backup=False,
    ),
    "stored_chats": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_stored_chats.test_another_projects_chat_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(admin_projects.MAX_STORE_DAYS, "days for which a chat may be stored"),
        removal=Removal(stored_chats._DROP_OLD),
    ),
    "stored_responses": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_stored_responses.test_another_projects_response_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(admin_projects.MAX_STORE_DAYS, "days for which a response may be stored"),
        removal=Removal(stored_responses._DROP_OLD),
    ),
    "background_responses": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_background_responses.test_another_projects_response_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(kept_background.MAX_OPEN, "responses of a project that have not ended; others are stored ones"),
        removal=Removal(background_responses._DROP_OLD),
        in_backup=False,
    ),
    "background_events": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_background_responses.test_another_projects_response_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(background_responses.EVENT_RETENTION_MINUTES, "minutes for which events of an ended response stay"),
        removal=Removal(background_responses._DROP_EVENTS),
        in_backup=False,
    ),
    "conversations": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_conversations.test_another_projects_conversation_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(admin_projects.MAX_STORE_DAYS, "days for which a conversation may be kept unchanged"),
        removal=Removal(conversations._DROP_OLD),
    ),
    "conversation_items": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_conversations.test_another_projects_conversation_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(kept_conversations.MAX_CONVERSATION_BYTES, "bytes of a conversation, of which an item has some"),
        removal=Removal(conversations._REMOVE_ITEM),
    ),
    "files": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_files.test_another_projects_file_is_answered_exactly_like_one_that_does_not_exist,
        bound=CONTENT,
        removal=Removal(files._DROP_OLD),
    ),
    "file_uploads": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_uploads.test_another_projects_upload_is_answered_like_one_that_does_not_exist,
        bound=Bound(kept_uploads.MAX_PENDING, "uploads of a project that are under way"),
        removal=Removal(uploads._DROP_OLD),
    ),
    "file_parts": Coverage(access=INTERNAL, foreign=INTERNAL, bound=CONTENT, removal=Removal(parts._DELETE)),
    "batches": Coverage(
        access=Reason("a key of the project with the scope for inference, by the request's own guard"),
        foreign=test_batches.test_another_projects_batch_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(kept_batches.MAX_OPEN, "batches of a project that have not ended"),
        removal=Removal(batches._DROP_OLD),
    ),
    "batch_lines": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Bound(validator.MAX_LINES, "lines of a batch"),
        removal=Removal(batch_work._DROP_LINES),
    ),
    "batch_turns": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per pool and project"),
        removal=Removal(turns._DROP_OLD),
    ),
    "disowned_lines": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Bound(validator.MAX_LINES, "lines of a batch"),
        removal=Reason("goes with its batch, by the foreign key"),
    ),
    "request_contents": Coverage(
        access=Route(("projects", "requests", "content")),
        foreign=test_contents.test_another_projects_request_is_answered_exactly_like_one_that_does_not_exist,
        bound=Bound(admin_projects.MAX_LOG_CONTENT_DAYS, "days for which content may be logged"),
        removal=Removal(request_contents._DROP_EXPIRED),
        in_backup=False,
    ),
    # experiments
    "experiments": Coverage(
        access=Route(("projects", "experiments")),
        foreign=ForeignId("experiment_id"),
        bound=Bound(admin_experiments.MAX_EXPERIMENTS_EVER, "experiments of a project"),
        removal=Removal(projects._REMOVE_EXPERIMENTS),
    ),
    "experiment_arms": Coverage(
        access=Route(("projects", "experiments")),
        foreign=ForeignId("experiment_id"),
        bound=Bound(definition.MAX_ARMS, "arms of an experiment"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_layers": Coverage(
        access=Route(("projects", "experiment_layers")),
        foreign=ForeignId("name"),
        bound=Bound(admin_layers.MAX_LAYERS, "layers of a project"),
        removal=Removal(projects._REMOVE_LAYERS),
    ),
    "experiment_holdouts": Coverage(
        access=Route(("projects", "holdouts")),
        foreign=ForeignId("name"),
        bound=Bound(admin_layers.MAX_HOLDOUTS, "holdouts of a project"),
        removal=Removal(projects._REMOVE_HOLDOUTS),
    ),
    "experiment_keys": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per project"),
        removal=Removal(projects._REMOVE_UNIT_KEY),
    ),
    "experiment_units": Coverage(
        access=Route(("projects", "experiment_units")),
        foreign=ForeignId("project_id"),
        bound=USAGE,
        removal=OF_EXPERIMENT,
    ),
    "experiment_requests": Coverage(access=INTERNAL, foreign=INTERNAL, bound=USAGE, removal=OF_EXPERIMENT),
    "experiment_events": Coverage(
        access=INTERNAL, foreign=INTERNAL, bound=USAGE, removal=Removal(projects._REMOVE_EVENTS)
    ),
    "experiment_days": Coverage(
        access=Route(("projects", "experiments", "exposures")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment, day, epoch and arm"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_sums": Coverage(
        access=Route(("projects", "experiments", "results")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment, day, epoch, arm and metric"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_segments": Coverage(
        access=Route(("projects", "experiments", "results")),
        foreign=ForeignId("experiment_id"),
        bound=Bound(segment_values.MAX_VALUES, "values of each kind that are counted apart, by epoch and arm"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_segment_sums": Coverage(
        access=Route(("projects", "experiments", "results")),
        foreign=ForeignId("experiment_id"),
        bound=Bound(segment_values.MAX_VALUES, "values of each kind that are counted apart, by epoch, arm and metric"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_times": Coverage(
        access=Route(("projects", "experiments", "results")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment, day, epoch, arm, metric and bucket"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_totals": Coverage(
        access=Route(("projects", "experiments", "results")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment, epoch, arm and metric"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_time_totals": Coverage(
        access=Route(("projects", "experiments", "results")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment, epoch, arm, metric and bucket"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_ages": Coverage(
        access=Route(("projects", "experiments", "ages")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment, epoch, arm, metric and day since exposure, of which there are 28"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_gateways": Coverage(
        access=INTERNAL, foreign=INTERNAL, bound=Reason("one row per gateway"), removal=Removal(notes._DROP_SILENT)
    ),
    "experiment_reasons": Coverage(
        access=Route(("projects", "experiments", "health")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment, day and reason"),
        removal=OF_EXPERIMENT,
    ),
    "experiment_looks": Coverage(
        access=Route(("projects", "experiments", "results")),
        foreign=ForeignId("experiment_id"),
        bound=Reason("one row per experiment and minute at most, and one per change of state"),
        removal=Removal(looks._DROP_OLD),
    ),
    "feedback_metrics": Coverage(
        access=Route(("projects", "feedback_metrics")),
        foreign=ForeignId("name"),
        bound=Bound(admin_metrics.MAX_METRICS, "feedback metrics of a project"),
        removal=Removal(projects._REMOVE_METRICS),
    ),
    "feedback": Coverage(
        access=Reason("a key of the project that sent the request, by the request's own guard"),
        foreign=test_whose.test_another_projects_feedback_is_answered_like_one_that_does_not_exist,
        bound=Bound(votes.RETENTION_DAYS, "days for which votes are kept"),
        removal=Removal(votes._DROP_OLD),
    ),
    "feedback_ids": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Bound(votes.RETENTION_DAYS, "days for which ids of votes are kept"),
        removal=Removal(votes._DROP_IDS_OF_PROJECT),
    ),
    "feedback_counted": Coverage(
        access=INTERNAL,
        foreign=INTERNAL,
        bound=Reason("one row per vote and experiment"),
        removal=Reason("goes with its vote or its experiment, by the foreign keys"),
    ),
    # traffic
    "traffic_rollups": Coverage(
        access=Route(("projects", "traffic")),
        foreign=ForeignId("project_id"),
        bound=USAGE,
        removal=LEDGER,
    ),
    "traffic_times": Coverage(
        access=Route(("projects", "traffic")),
        foreign=ForeignId("project_id"),
        bound=USAGE,
        removal=LEDGER,
    ),
    "refusals": Coverage(
        access=Route(("projects", "refusals")),
        foreign=ForeignId("project_id"),
        bound=Bound(refusals.MAX_PER_PROJECT, "rows of a project"),
        removal=Removal(refusals._DROP_OLD),
    ),
}
