"""DSPy: calls by the engine of its own (lm15) that it prefers, and by LiteLLM under DSPy's name: whole and streamed,
asked and awaited, of both APIs, one that fails and is asked again, and a stream that is left early."""

import asyncio
import os
from typing import Any

import dspy

URL = os.environ["MODEL_URL"]
ENGINES: list[dict[str, Any]] = [
    {"engine": engine, "model_type": kind} for engine in ("auto", "litellm") for kind in ("chat", "responses")
]


def model(**options: Any) -> Any:
    return dspy.LM("openai/gpt-4o", api_base=URL, api_key="sk-test-0123456789", cache=False, num_retries=1, **options)


async def streamed(predict: Any, question: str) -> str:
    pieces = dspy.streamify(predict, stream_listeners=[dspy.streaming.StreamListener(signature_field_name="answer")])
    *_, last = [piece async for piece in pieces(question=question)]
    return str(last.answer)


def early() -> str:
    request = dspy.lm15.Request(model="gpt-4o", messages=(dspy.lm15.Message.user("early"),))
    engine = dspy.lm15.OpenAIChatLM(api_key="sk-test-0123456789", base_url=URL)
    events = engine.stream(request)
    first = next(events)
    events.close()
    return type(first).__name__


def main() -> list[str]:
    predict = dspy.Predict("question -> answer")
    said = []
    for options in ENGINES:
        with dspy.context(lm=model(**options)):
            said += [
                predict(question="whole").answer,
                asyncio.run(predict.acall(question="awaited")).answer,
                asyncio.run(streamed(predict, "streamed")),
                predict(question="again").answer,
            ]
    return [*said, early()]


if __name__ == "__main__":
    print(main())
