"""Every attribute name that arttrace puts on the wire or reads from it, each with its source.

`gen_ai.*` names are those of the OpenTelemetry GenAI semantic conventions (status "development", autumn 2026);
`arttrace.*` names are ours, for what the conventions do not cover.
"""

from __future__ import annotations

from typing import Final

# --- OpenTelemetry GenAI semantic conventions -------------------------------------------------------------
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
CONVERSATION_COMPACTED: Final = "gen_ai.conversation.compacted"  # only ever true

REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_PREVIOUS_RESPONSE: Final = "gen_ai.request.previous_response.id"  # read as PREVIOUS_RESPONSE_ID
REQUEST_ENCODING_FORMATS: Final = "gen_ai.request.encoding_formats"
EMBEDDINGS_DIMENSION_COUNT: Final = "gen_ai.embeddings.dimension.count"

RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # seconds

USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_WRITE_INPUT_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"

INPUT_MESSAGES: Final = "gen_ai.input.messages"  # JSON text: list of messages with parts
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"  # JSON text: list of messages, one per choice
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"  # JSON text

TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"

AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_ID: Final = "gen_ai.agent.id"
AGENT_DESCRIPTION: Final = "gen_ai.agent.description"

OPENAI_API_TYPE: Final = "openai.api.type"
AWS_BEDROCK_GUARDRAIL_ID: Final = "aws.bedrock.guardrail.id"

OPERATION_CHAT: Final = "chat"
OPERATION_TEXT_COMPLETION: Final = "text_completion"
OPERATION_GENERATE_CONTENT: Final = "generate_content"
CALL_OPERATIONS: Final = (OPERATION_CHAT, OPERATION_TEXT_COMPLETION, OPERATION_GENERATE_CONTENT)  # model calls
OPERATION_EMBEDDINGS: Final = "embeddings"
OPERATION_INVOKE_AGENT: Final = "invoke_agent"
OPERATION_EXECUTE_TOOL: Final = "execute_tool"
OPERATION_CREATE_AGENT: Final = "create_agent"
OPERATION_INSIDE_A_CALL: Final = "inference"  # of Google ADK's other span of a call
OPERATION_LEFT_OUT: Final = "arttrace.left_out"  # of a span that only says that sampling left a run out
OPERATION_REFUSED: Final = "arttrace.refused"  # of a span that only stands in for one that could not be taken
CONTENT_OF_A_CALL: Final[tuple[str, ...]] = (INPUT_MESSAGES, OUTPUT_MESSAGES, SYSTEM_INSTRUCTIONS, TOOL_DEFINITIONS)

# --- OpenTelemetry general conventions ---------------------------------------------------------------------
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS_CODE: Final = "http.response.status_code"
HTTP_REQUEST_SIZE: Final = "http.request.body.size"  # bytes, as they were sent
HTTP_RESPONSE_SIZE: Final = "http.response.body.size"
URL_FULL: Final = "url.full"
SERVICE_NAME: Final = "service.name"
SESSION_ID: Final = "session.id"
USER_ID: Final = "user.id"

# --- What a call cost, in US dollars, where its sender states it: the conventions have no name for it -----------
USAGE_COST: Final = "gen_ai.usage.cost"  # OpenLLMetry's and OpenLIT's name, and that of what others state
STATED_COSTS: Final = (
    "operation.cost",  # Logfire, PydanticAI
    USAGE_COST,
    "gen_ai.cost.total_cost",  # LiteLLM's callback
    "llm.cost.total",  # OpenInference
)
STATED_COSTS_OF_PARTS: Final = ("llm.cost.prompt", "llm.cost.completion")  # which add up to it
STATED_COSTS_IN_JSON: Final = "langfuse.observation.cost_details"  # JSON text: by kind of token, maybe with the `total`

# --- Langfuse: what its server wants on every span (formats/sdks/langfuse/names.py has the rest) -------------
LANGFUSE_TRACE_NAME: Final = "langfuse.trace.name"
LANGFUSE_TRACE_TAGS: Final = "langfuse.trace.tags"
SESSION_KEYS: Final = ("langfuse_session_id", "session_id")  # names in a run's metadata that name its session
USER_KEYS: Final = ("langfuse_user_id", "user_id")

# --- Logfire: what a second span of one call has (formats/sdks/whole_traces/logfire.py) ----------------------
LOGFIRE_SPAN_TYPE: Final = "logfire.span_type"  # "span", "log", or "pending_span" of one that had only begun
LOGFIRE_REPORT: Final = "streaming response from "  # how the name of a log begins that says what a stream brought
LOGFIRE_DURATION: Final = "duration"  # on such a log: for how long the stream was read, in seconds
LOGFIRE_LONGEST: Final = 1_000_000_000  # seconds of it that are believed; what is no such number is none
LOGFIRE_ANSWER: Final = "response_data"  # an answer in the form of its versions before 5
LOGFIRE_ASKED: Final = (REQUEST_MODEL, INPUT_MESSAGES, SYSTEM_INSTRUCTIONS)  # what the two spans of a stream both have
LOGFIRE_ANSWERED: Final = (  # what the span of a request has, but for one of a stream
    *(OUTPUT_MESSAGES, RESPONSE_ID, USAGE_INPUT_TOKENS, USAGE_OUTPUT_TOKENS, LOGFIRE_ANSWER),
)

# --- arttrace ----------------------------------------------------------------------------------------------
TRAJECTORY_ID: Final = "arttrace.trajectory.id"
TRAJECTORY_SPAN_COUNT: Final = "arttrace.trajectory.span_count"  # on the local root: spans it ended before itself
TREE_COUNT: Final = "arttrace.trajectory.tree_count"  # of another system: spans from here on, less other runs' below
HTTP_REQUEST_HEADERS: Final = "arttrace.http.request.headers"  # JSON text: an object; by `http_spans=["headers"]`
HTTP_RESPONSE_HEADERS: Final = "arttrace.http.response.headers"
HTTP_REQUEST_BODY: Final = "arttrace.http.request.body"  # JSON text: the document, or the text; by `["bodies"]`
HTTP_RESPONSE_BODY: Final = "arttrace.http.response.body"
HTTP_REQUEST_COUNT: Final = "arttrace.trajectory.http_request_count"  # on the local root: requests begun under it
LOG_RECORD: Final = "arttrace.log_record"  # true on a span that stands for a log record about the span above it
PROJECT: Final = "arttrace.project"
ENTRY: Final = "arttrace.entry"  # "module:qualname" or "path.py:qualname" that loads the decorated function
ENTRY_NAME: Final = "arttrace.entry.name"  # its name within its project, the same however the program was started
SCENARIO: Final = "arttrace.scenario"
GROUP: Final = "arttrace.group"
TAGS: Final = "arttrace.tags"
HELD_OUT_TAG: Final = "held-out"  # of a run that measures a policy: nothing is trained on it
NOT_TRAINABLE_TAG: Final = "not-trainable"  # of a run of an agent that is not to be trained, as a user that is played
METADATA: Final = "arttrace.metadata"  # JSON text of one object
ENTRY_ARGUMENTS: Final = "arttrace.entry.arguments"  # JSON text of one object
ENTRY_RESULT: Final = "arttrace.entry.result"  # JSON text

# One flow of control inside a process (an asyncio task, a thread) as seen by the calls it made: the parent is the
# flow that started it. Facts from inside the process that tell parallel sub-agents of undecorated code apart.
EXECUTION_ID: Final = "arttrace.execution.id"
EXECUTION_PARENT_ID: Final = "arttrace.execution.parent_id"

# Token truth, from the serving engine. A choice beyond the first has the suffix ".1", ".2", ...
# Encodings: records/tokens.py. Plain arrays are accepted on input.
PROMPT_TOKEN_IDS: Final = "arttrace.prompt_token_ids"
TOKEN_IDS: Final = "arttrace.token_ids"
LOGPROBS: Final = "arttrace.logprobs"
POLICY_VERSION: Final = "arttrace.policy.version"  # "name@N"
ROUTED_FROM: Final = "arttrace.routed.from"  # the model the program asked for, where a route sent the call to a policy

SAMPLING: Final = "arttrace.sampling"  # as SAMPLING_HEADER has it
SAMPLING_SETTINGS: Final = "arttrace.request.sampling_settings"  # names of further request fields that change sampling
REQUEST_FIELDS: Final = "arttrace.request.fields"  # request fields that no other attribute gives back, as JSON
REQUEST_FIELDS_LEFT_OUT: Final = "arttrace.request.fields_left_out"  # names of those that were too large
PREVIOUS_RESPONSE_ID: Final = "arttrace.request.previous_response_id"  # the response whose history this one continues
PROMPT_FORM: Final = "arttrace.request.prompt_form"  # "begun": its last message begins the answer; "several" prompts
MESSAGES_KEPT: Final = "arttrace.request.messages_kept"  # names of request fields for messages that the server keeps
ATTEMPT_EVENT: Final = "arttrace.attempt"  # an attempt that failed, with the status code or the error's type
ATTEMPTS: Final = "arttrace.attempts"  # HTTP attempts of one call, when not one
INTERRUPTED: Final = (
    "arttrace.interrupted"  # why a run or an answer ended early: "closed", "cancelled", "error", "background"
)
BACKGROUND: Final = "background"  # by INTERRUPTED: the answer of a call is in none of its bytes, others brought it
DESCRIBED: Final = "arttrace.described"  # names of the attributes that do not give back their value, which is no JSON
TOOL_RESULT: Final = "arttrace.tool.result"  # JSON text: a library's result, where it is more than a model is shown
TRUNCATED: Final = "arttrace.truncated"  # names of the attributes whose value was cut to a bound
MASKED: Final = "arttrace.masked"  # names of attributes that a content mode, a mask or the search for secrets changed

REWARD_ID: Final = "arttrace.reward.id"
REWARD_SOURCE: Final = "arttrace.reward.source"
REWARD_AGENT_ID: Final = "arttrace.reward.agent_id"
REWARD_JUDGEMENT_ID: Final = "arttrace.reward.judgement_id"
REWARD_VERSION: Final = "arttrace.reward.version"
REWARD_GIVEN_TO: Final = "arttrace.reward.given_to"
RECORD: Final = "arttrace.record"  # JSON text: a record that is no span and that no other attribute can say
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"

# Set by the gateway on every answer; capture copies it into POLICY_VERSION.
POLICY_VERSION_HEADER: Final = "x-arttrace-policy-version"
# Set by the gateway as well: "policy" where it left out what would have changed the sampling, so that it was the
# policy's own whatever was asked for; "processed" where the log-probabilities are of the distribution that was sampled
# from, temperature included.
SAMPLING_HEADER: Final = "x-arttrace-sampling"
# And the id of the token with which the model ends an answer: by it one that was cut is known where it says otherwise.
END_TOKEN_HEADER: Final = "x-arttrace-end-token"
