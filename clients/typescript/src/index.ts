export { Nexus, type AnswerEvent, type Options, type Schemas } from "./client.js";
export { NexusProblem, type Problem } from "./problem.js";
export type { components, operations, paths } from "./schema.js";
