// Remember something, and read it back: NEXUS_HTTP_TOKEN=… node dist/example.js [URL]
import { Nexus, NexusProblem } from "./src/index.js";

const nexus = new Nexus({ url: process.argv[2] ?? "http://127.0.0.1:8700", token: process.env.NEXUS_HTTP_TOKEN ?? "" });
try {
  await nexus.remember({ namespace: "typescript", author: "ann", text: "I moved to Lisbon in March." });
  const { text } = await nexus.context({ namespace: "typescript", query: "Where did ann move?", max_tokens: 500 });
  console.log(text);
  for await (const { event, data } of nexus.askStream({ namespace: "typescript", question: "Where did ann move?" })) {
    console.log(event, data.text);
  }
} catch (error) {
  if (!(error instanceof NexusProblem)) throw error;
  console.error(`${error.message} ${error.remedy}`);
  process.exitCode = 1;
}
