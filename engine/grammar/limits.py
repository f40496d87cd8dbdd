"""The bounds on a grammar's cost, so that no grammar delays others that share the engine."""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_SOURCE_BYTES = 256 * 1024
MAX_CHOICES = 10_000
MAX_OPTIONAL_PROPERTIES = 256  # of one object: the parser's time grows with their square, 300 take 2 ms a token

MAX_ARGUMENT_SCHEMAS_CHARS = 16 * MAX_SOURCE_BYTES
"""The schemas of one tool's arguments, where each is a schema of its own and repeats the definitions that it uses."""

# Limits of one compilation, in the worker. Ordinary grammars take milliseconds, thousands of properties half a second.
COMPILE_CPU_S = 2.0
COMPILE_WALL_S = 20.0  # the worker yields to the engine, so it may need longer than its processor time
COMPILE_BYTES = 1 << 30
COMPILE_STACK_BYTES = 4 << 20  # the thread that compiles again what the worker has accepted has more
COMPILER_STACK_BYTES = 16 << 20
COMPILER_NICENESS = 5  # a saturated engine leaves a compilation a quarter of a core; at 10 it is a tenth

# Limits of one completion's masks, on the stepping thread. Ordinary masks take 0.01 to 0.3 ms.
MASK_BURST_S = 0.025
MASK_PER_TOKEN_S = 0.001
FIRST_TOKEN_S = 0.002  # the time that the scheduler expects a mask to take before the grammar's first token

MAX_WAITING_PER_TENANT = 64  # grammars to compile: one tenant's flood leaves room in the engine's queue

CACHED_GRAMMARS = 32

# llguidance's own, deterministic bounds. Lexer fuel burns at about 14 units a microsecond, items at 20; a lexer state
# takes 1 to 2 kB; a row of 2,000 items takes 5 ms. Errors leave this process, so they don't quote the parser's state.
PARSER_LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=25_000,
    verbose_errors=False,
)
