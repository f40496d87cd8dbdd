"""The scheduling of steps: which tokens the next step computes.

Pure: data in, a plan out; no clock of its own, no torch, no threads, no sockets.

    scheduler       the plan of a step, and what its results change
    request_book    the requests from arrival to the end, by id and by tenant
    request_group   one request with its choices
    waiting_queue   the sequences that wait, by tenant
    running_set     the sequences that run, and the one that gives way when memory runs out
    band            the requests of one band, interactive or batch
    batch_work      what the batch band gets of a step
    step_time       predicts, from steps before, how long a step takes, and how much time is left for batch work
    guaranteed_share  what batch work is owed
    admission       who may start: memory, adapter slots, fairness
    fairness        service per tenant by weight (virtual token counters)
    finish_rate     when a refused request may come again
    completion      one choice's tokens: stop ids, lengths, what is shown
    block_manager   the blocks of each sequence, by table, and the reuse of prefixes
    cache           the pool of blocks, their hashes, and slots for states
    drafter         tokens guessed from the text so far
    limits          what a request may ask of this engine
    matcher_time    what grammars may take of one step
    totals          counters for the statistics

- Fairness. A tenant's counter grows by uncached prompt tokens + 2 * completion tokens + bytes of adapters loaded for it
  (in tokens' worth of cache), all divided by the request's weight. The request with the most cached tokens is admitted,
  of the tenants within a quantum of 512 of the smallest counter. A request whose adapter is not there is passed over by
  others and holds nobody up; one that lacks memory is not overtaken. A tenant that returns from idle is lifted to the
  smallest counter that waits. Counters also order prefills, and choose who gives way; fairness by itself preempts
  nobody. `fairness` states the bound.
- Preemption. A sequence starts with blocks for all its tokens, and one to spare for each that runs. When a decode, or a
  prompt longer than a window, finds no block, the newest sequence of the running tenant with the highest counter gives
  up its blocks, keeps its tokens, and is computed again later; nothing is sent twice.
- Prefixes. A computed block is known by a SHA-256 chained over its tokens and its parent's, from a root of tenant and
  adapter digest keyed with a secret of the process. A prompt that starts with known blocks shares them, its last
  token aside; unused blocks stay until memory is needed, least recently released first. Prompts whose
  log-probabilities are asked for, and mean pooling, need every position computed and reuse nothing, but what they
  compute is reused.
- Windows. A sequence has a table of blocks for each table of the cache's layout. Blocks that a window leaves behind go
  back to the pool, and a prefix is found without them (`block_manager`).
- States. In models some of whose layers keep a state in place of keys and values, a sequence has a slot as well, and a
  prefix is of use only where a snapshot of the states at its end was taken. Chunks name the slots between which they
  lead; drafts are off, since a state takes no token back.
- Bands. Interactive requests are planned as if there were no batch work, which fills what they leave of a step's rows,
  tokens and time, and has a small share in any case. `batch_work` states the rules.
- Choices. The n choices of a request are sequences of their own. The first computes the prompt; the others wait for
  it, and find all of it but the last block in the cache. Each may be aborted alone; the one `Final` comes after the
  last.
- Drafts. A decode may carry guesses, from what its client predicted (`predicted_token_ids`) or, without a prediction,
  found by looking up its last tokens in its own text, and keeps them as far as they are what was sampled: the text is
  the one without drafts. Not under grammars or penalties.
"""
