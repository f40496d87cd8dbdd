"""Usage, costs and invoices of a period as files that finance can trust, for a folder, a download or an object store.

An export is one file of rows and a manifest with their number, sums and digest. The rows come from one snapshot of the
ledger in a stated total order; the ledger's own sums are taken in the same snapshot, and an export that does not equal
them to the nano fails. The files of a closed period are the same bytes every time, on any machine with the same
library versions.
"""
