// The handlers of a worker in JavaScript: `node main.mjs`, with the gateways' addresses in
// POOL_GATEWAYS (one or more, with spaces between them) and its secret in POOL_WEB_WORKER.

import { setTimeout as sleep } from 'node:timers/promises'
import { work } from './worker.mjs'

const handlers = {
  async add(job, a, b) {
    return a + b
  },

  async count(job, to) {
    for (let n = 1; n <= to; n += 1) {
      await sleep(100, undefined, { signal: job.signal }) // ends when the job is to stop
      job.progress(n, to)
    }
    return to
  },
}

const leaving = new AbortController()
for (const name of ['SIGTERM', 'SIGINT']) process.once(name, () => leaving.abort())

await work({
  gateways: process.env.POOL_GATEWAYS.split(' '),
  secret: process.env.POOL_WEB_WORKER,
  handlers,
  capacity: 4,
  signal: leaving.signal,
})
