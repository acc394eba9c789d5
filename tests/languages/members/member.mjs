// A worker of the tests in JavaScript: examples/http/javascript, with handlers that write down what
// they do: see tests/verify/history.py.

import { createHash } from 'node:crypto'
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { work } from '../../../examples/http/javascript/worker.mjs'

const { LEDGER, EFFECTS, P, CAPACITY, GRACE_S, POOL_GATEWAYS, POOL_WEB_WORKER } = process.env
let written = 0
let runs = 0

function write(path, type, f, job, call, more) {
  const event = {
    n: (written += 1), t: Number(process.hrtime.bigint()) / 1e9, p: P, type, f, idem: call,
    key: job.key, job: job.id, attempt: job.attempt, epoch: job.epoch, nonce: job.worker ?? '', ...more,
  }
  appendFileSync(path, `${JSON.stringify(event)}\n`)
}

const throws = () => {
  throw new Error('as it was told')
}
const ODD = {
  null: () => null,
  nothing: () => undefined,
  symbol: () => Symbol('s'),
  getter: () => Object.defineProperty({}, 'message', { get: throws }),
  proxy: () => new Proxy({}, { get: throws, getPrototypeOf: throws }),
}

const handlers = {
  async work(job, call, text) {
    const spec = JSON.parse(text)
    const run = (runs += 1)
    const digest = createHash('sha1').update(text).digest('hex').slice(0, 12)
    write(LEDGER, 'ok', 'start', job, call, { extra: { run, digest, kind: 'job', attempts_max: 5 } })
    const end = (type, err) => write(LEDGER, type, 'end', job, call, { err, extra: { run } })
    write(EFFECTS, 'info', 'effect', job, call)
    try {
      if ('progress' in spec) job.progress(spec.progress)
      for (let n = 0; n < (spec.saves ?? 0); n += 1) await job.save({ n })
      await sleep(spec.ms, undefined, { signal: job.signal })
    } catch (error) {
      end('fail', job.signal.aborted ? 'cancelled' : 'error')
      throw error
    }
    if (job.attempt === 1 && spec.odd) {
      end('fail', 'error')
      if (spec.odd === 'toJSON') return { toJSON: () => { throw ODD.proxy() } }
      if (spec.odd !== 'message') throw ODD[spec.odd]()
      job.onMessage = async () => { throw ODD.getter() }
      await sleep(60_000, undefined, { signal: job.signal })
    }
    if (job.attempt <= spec.fails) {
      end('fail', 'error')
      throw new Error('as it was told')
    }
    end('ok', '')
    return { call, attempt: job.attempt, epoch: job.epoch, text: spec.text ?? null }
  },
}

const leaving = new AbortController()
process.once('SIGTERM', () => leaving.abort())
await work({
  gateways: POOL_GATEWAYS.split(' '),
  secret: POOL_WEB_WORKER,
  handlers,
  capacity: Number(CAPACITY),
  graceS: Number(GRACE_S),
  signal: leaving.signal,
})
