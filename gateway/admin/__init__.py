"""The admin API under /v1/organization, and logins under /admin/v1.

There is a folder for each subject, and a file for each kind of object.

Each route declares, as data in its `opt`, the permission it needs, the query parameters it knows and the struct of
its body (`access`). `check_routes` refuses a router with a route that does not, and the tests walk the same table.
`gateway.domain.tenancy.permissions` has the tables from roles and scopes to permissions: one of roles in the
organization, one of roles in a project. The guard turns a key or a cookie into an `Actor`, and answers for a project
in which the caller has no part as for one that does not exist.

A change is one transaction: lock the project, look, change, and call `audit.record` last, since that holds the lock
of the organization's chain. Rows on which several keys depend (a user, a project) are locked first, then keys in the
order of their ids. The announcement of a change comes last, since it locks one row for all. A transaction that loses
a deadlock all the same is answered with 503. A request that changes nothing records nothing. Caches hear of changes
through the change feed; changes of projects, organizations and users are rare, and empty the key cache.
"""

from gateway.admin.router import admin_routers
from gateway.admin.services import AdminServices

__all__ = ["AdminServices", "admin_routers"]
