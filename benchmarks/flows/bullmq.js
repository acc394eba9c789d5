// BullMQ in this comparison: ROLE URL PART COUNT, one line of JSON each way; see protocol.py.
"use strict";
const { FlowProducer, Queue, QueueEvents, Worker } = require("bullmq");
const readline = require("node:readline");

const [role, url, , count] = process.argv.slice(2);
const connection = { url, maxRetriesPerRequest: null };
const NAME = "bench";
const WAIT_MS = 60_000;
let starts = [];

const answer = (told) => process.stdout.write(JSON.stringify(told) + "\n");
const monotonic = () => Number(process.hrtime.bigint());
// The clock of the day in ns is beyond what a number holds: microseconds, and three digits more.
const wall = () => Number(BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)) * 1000n);

async function run(job) {
  if (job.name === "end") return null; // a batch's parent
  starts.push([job.name === "tick" ? job.data.name : job.name, monotonic(), wall()]);
  return job.data.number;
}

function flow(parent, size) {
  const children = [];
  for (let number = 0; number < size; number += 1)
    children.push({ name: "member", queueName: NAME, data: { number } });
  return { name: parent, queueName: NAME, data: {}, children };
}

async function client() {
  const queue = new Queue(NAME, { connection });
  const flows = new FlowProducer({ connection });
  const events = new QueueEvents(NAME, { connection });
  await Promise.all([queue.waitUntilReady(), flows.waitUntilReady(), events.waitUntilReady()]);
  return {
    async batch(size) {
      const made = await flows.add(flow("end", size));
      await made.job.waitUntilFinished(events, WAIT_MS);
    },
    async fan_in(size) {
      await flows.add(flow("after", size));
    },
    async cron() {
      for (let number = 0; number < Number(count); number += 1) {
        const name = `s${number}`;
        const template = { name: "tick", data: { name } };
        await queue.upsertJobScheduler(name, { pattern: "* * * * * *" }, template);
      }
    },
  };
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  answer({ state: "ready" });
  await lines.next();
  let does = null;
  if (role === "client") {
    does = await client();
    answer({ state: "open" });
  } else {
    new Worker(NAME, run, { connection, concurrency: 100 });
  }
  for await (const line of lines) {
    const asked = JSON.parse(line);
    if (does === null) {
      answer({ starts });
      starts = [];
    } else {
      const began = monotonic();
      await does[asked.do](asked.count);
      answer({ began_ns: began, ended_ns: monotonic() });
    }
  }
  process.exit(0);
}

main();
