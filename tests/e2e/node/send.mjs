// Sends three spans with a stock JavaScript exporter: node send.mjs URL proto|json
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

const [url, kind] = process.argv.slice(2);
const { OTLPTraceExporter } = await import(`@opentelemetry/exporter-trace-otlp-${kind === "json" ? "http" : "proto"}`);
const exporter = new OTLPTraceExporter({ url: `${url}/v1/traces`, compression: "gzip" });
const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ "service.name": "a JavaScript agent" }),
  spanProcessors: [new BatchSpanProcessor(exporter)],
});
provider.register();
const tracer = provider.getTracer("agent");

tracer.startActiveSpan("invoke_agent greeter", (root) => {
  root.setAttributes({ "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "greeter" });
  for (const words of ["hello", "grüße 🎈"]) {
    tracer.startActiveSpan("chat m", { kind: 2 }, (span) => {
      const message = (role, content) => JSON.stringify([{ role, parts: [{ type: "text", content }] }]);
      span.setAttributes({
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": message("user", words),
        "gen_ai.output.messages": message("assistant", words),
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stop_sequences": ["a", "b"],
      });
      span.addEvent("said", { length: words.length });
      span.end();
    });
  }
  root.end();
});
await provider.shutdown();
