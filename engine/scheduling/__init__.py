"""What runs in the next step. Pure: data in, a plan out; no clock of its own, no torch, no threads, no sockets.

scheduler       the plan of a step, and what its results change
request_book    the requests from arrival to the end, by id and by tenant
request_group   one request with its choices
waiting_queue   those that wait, by tenant
running_set     those that run, and who gives way when memory runs out
admission       who may start: memory, adapter slots, fairness
fairness        service per tenant by weight (virtual token counters)
finish_rate     when a refused request may come again
completion      one choice's tokens: stop ids, lengths, what is shown
block_manager   the KV cache's blocks: references, reuse of prefixes, least recently used
block_hashes    what makes two blocks equal
drafter         tokens guessed from the text so far
limits          what a request may ask of this engine
matcher_time    what grammars may take of one step
totals          counters for the statistics
"""
