"""The parts of billing that run: the bookkeeper and the cache of prices for limits.

The bookkeeper adds up the rows that the ledger has queued.

Pure decisions (the price book, rounding, credits, closing, invoices and their page) are in `gateway.domain.billing`,
queries in `gateway.db.billing` and `gateway.db.ledger`. README.md beside this file is for operators who bill their
tenants.

- Prices are versions, each complete, never changed. The database prices a row in the transaction that writes it, by
  the version in force at its created_at; so the prices that a gateway remembers bill nothing, and
  `gateway.domain.billing.pricing` is the same arithmetic for checks. Prices are nanos per million tokens. Each row is
  rounded once, half up: the costs of its kinds of tokens are the steps of a rounded running sum, so that they add up to
  the row's cost. A new version takes effect 20 s after it was set, when every gateway knows it; limits reserve an upper
  bound over versions about to change, classes of adapters and cached tokens.
- Periods are months, closed in order, an hour after their end, by hand; a lost journal holds that up for three days.
  Later usage is billed in the open month with `corrects_period`. Operators' adjustments are rows with a reason.
- Credits. balance = grants - lapsed - drawn by closed periods - cost of open ones. A prepaid project has a hard limit
  of cost without a window, whose max is recomputed from rows when credits or periods change and whose account the
  ledger moves: there is no balance that could drift. One statement reads both the cost of a row and its settlement in
  the limit's account, so writers need not wait. A month below zero is charged up to zero by an adjustment, and that
  amount is granted as credit.
- Sums of money are numeric: a good month in a weak currency exceeds a bigint. Accounts of limits stop at a bigint's
  end.
"""
