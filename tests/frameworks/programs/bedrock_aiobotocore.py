"""Calls of Bedrock's models by aiobotocore, which asks the server whose address is in BEDROCK_URL."""

import asyncio
import json
import os
from typing import Any

from aiobotocore.session import get_session
from botocore.exceptions import ClientError

ASKED: dict[str, Any] = {"modelId": "nova-x", "messages": [{"role": "user", "content": [{"text": "hi"}]}]}
CHAT = {"modelId": "openai.gpt-oss", "body": json.dumps({"messages": [{"role": "user", "content": "hi"}]})}


async def main() -> list[Any]:
    client = get_session().create_client(
        "bedrock-runtime", region_name="eu-west-1", endpoint_url=os.environ["BEDROCK_URL"]
    )
    async with client as bedrock:
        said: list[Any] = [(await bedrock.converse(**ASKED))["output"]]
        said.append([event async for event in (await bedrock.converse_stream(**ASKED))["stream"]])
        async with (await bedrock.invoke_model(**CHAT))["body"] as body:
            said.append(json.loads(await body.read())["choices"])
        stream = (await bedrock.invoke_model_with_response_stream(**CHAT))["body"]
        said.append([event["chunk"]["bytes"].decode() async for event in stream])
        try:
            await bedrock.converse(**ASKED | {"modelId": "refused"})
        except ClientError as error:
            said.append(str(error))
        return said


if __name__ == "__main__":
    print(asyncio.run(main()))
