// A worker of a pool over HTTP, for Node 20 or later and nothing else: see main.mjs.
//
// So that no job runs in two places at a time:
//   - Who has no answer for `expires_in_s`, counted from when it asked, stops its handlers
//     (`job.signal` aborts): somebody else may have their jobs soon.
//   - A job is held, and said to be, until what became of it has been answered.
//   - One that is handed out again, because an answer was lost, is known by its token.

import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'

const NEVER = new AbortController().signal
const after = (ms) => AbortSignal.timeout(Math.ceil(ms))

/** Work until the signal aborts: then end what runs within the grace, give back the rest, leave. */
export async function work({
  gateways, secret, // addresses, of which any will do; a secret of the role `worker`
  handlers, // { name: async (job, ...args) => result }
  capacity = 1, // jobs at a time
  graceS = 30,
  signal = NEVER,
  log = (line) => console.log(JSON.stringify(line)),
}) {
  const held = new Map() // token -> { job, item, abort, ended }
  let gateway = 0, answerS = 5 // longer than a gateway takes, beside what a poll waits
  let deadlineMs = 0, timer // of our own clock: from then on our lease may be over

  // Ask one gateway after the other until one answers: [status, its answer, when we asked it].
  async function ask(path, body, waitS = 0, until = NEVER) {
    const text = JSON.stringify(body)
    for (let pauseMs = 50; ; pauseMs = Math.min(2 * pauseMs, 1000)) {
      until.throwIfAborted()
      const url = `${gateways[gateway % gateways.length]}/v1/workers${path}`
      const sentMs = performance.now()
      try {
        const answer = await fetch(url, {
          method: 'POST',
          headers: { authorization: `Bearer ${secret}`, 'content-type': 'application/json' },
          body: text,
          signal: AbortSignal.any([until, after(1000 * (waitS + answerS))]),
        })
        const told = await answer.json()
        if (answer.status < 500 && answer.status !== 429) return [answer.status, told, sentMs]
      } catch {
        until.throwIfAborted() // anything else is no answer
      }
      gateway += 1
      await sleep(pauseMs)
    }
  }

  const stop = (run, why) => run?.abort.abort(new Error(why))
  const stopAll = (why) => held.forEach((run) => stop(run, why))
  const renewed = (sentMs, told) => {
    deadlineMs = sentMs + 1000 * told.expires_in_s
    clearTimeout(timer)
    timer = setTimeout(stopAll, deadlineMs - performance.now(), 'no gateway answers in time')
  }

  function begin(worker_token, job) {
    const run = { job, item: { token: job.token }, abort: new AbortController() }
    job.signal = run.abort.signal
    job.progress = (done, total, note = '') => void (run.item.progress = { done, total, note })
    job.save = async (state) => {
      const [status, told] = await ask('/save', { worker_token, token: job.token, state })
      if (status !== 200) throw new Error(told.detail)
    }
    held.set(job.token, run)
    run.ended = settle(worker_token, run) // until what became of it is answered
  }

  async function settle(worker_token, { job, abort }) {
    const { token, key, id, attempt, epoch } = job
    const tell = async (path, said) => {
      const [, answer] = await ask(path, { worker_token, jobs: [{ token, ...said }] })
      const { outcome, problem = answer } = answer.jobs?.[0] ?? {}
      if (outcome) return outcome
      throw Object.assign(new Error(problem.detail), { name: problem.code, retry: false })
    }
    let outcome
    try {
      const result = (await handlers[job.handler](job, ...job.args)) ?? null
      outcome = await tell('/complete', { result })
    } catch (error) { // a result may be refused, too
      const { name: type = 'Error', message = String(error), stack: traceback = '' } = error ?? {}
      const said = { error: { type, message, traceback }, retry: error?.retry ?? true }
      const telling = abort.signal.aborted ? tell('/release') : tell('/fail', said)
      outcome = await telling.catch(() => 'refused') // it is somebody else's, or has ended
    }
    log({ outcome, key, id, attempt, epoch })
    held.delete(token)
  }

  function heed(told) {
    for (const { token, reason } of [...told.stop, ...told.lost]) stop(held.get(token), reason)
    for (const { token, id, value } of told.messages) {
      const run = held.get(token)
      if (!run?.job.onMessage || Number(id) <= Number(run.item.seen)) continue
      run.item.seen = id // it is told again until a request says so
      run.job.onMessage(value)
    }
  }

  // Poll where there is room, else beat; says whether to register again.
  async function serve({ token: worker_token, heartbeat_s, poll_max_s }) {
    let isDrained = false
    while (held.size || !(isDrained || signal.aborted)) {
      const room = isDrained || signal.aborted ? 0 : capacity - held.size
      const wait_s = held.size ? heartbeat_s : Math.min(20, poll_max_s)
      const beat = { worker_token, held: Array.from(held.values(), (run) => run.item) }
      const poll = { ...beat, jobs_max: room, wait_s }
      const asking = room ? ask('/poll', poll, wait_s, signal) : ask('/heartbeat', beat)
      const answered = await asking.catch((error) => {
        if (!signal.aborted) throw error // `leave` gives back what this poll would have brought
      })
      if (!answered) continue
      const [status, told, sentMs] = answered
      if (status === 410 || told.register_again) return true
      if (status !== 200) throw new Error(`${told.title}: ${told.detail}`)
      renewed(sentMs, told)
      heed(told)
      isDrained ||= told.drain
      for (const job of told.jobs) { // what comes too late is handed out again
        if (!held.has(job.token) && performance.now() < deadlineMs) begin(worker_token, job)
      }
      if (!room || held.size >= capacity) {
        const ends = Array.from(held.values(), (run) => run.ended)
        await Promise.race([sleep(1000 * heartbeat_s), ...ends])
      }
    }
    const leftMs = Math.max(1000 * answerS, deadlineMs - performance.now())
    await ask('/leave', { worker_token }, 0, after(leftMs)).catch(() => {}) // it lapses, then
    return false
  }

  signal.addEventListener('abort', () => setTimeout(stopAll, 1000 * graceS, 'leaving').unref())
  const me = { handlers: Object.keys(handlers), capacity, host: hostname(), pid: process.pid }
  for (let isAgain = true; isAgain && !signal.aborted; ) {
    const [status, told, sentMs] = await ask('', me, 0, signal)
    if (status !== 201) throw new Error(`${told.title}: ${told.detail}`)
    renewed(sentMs, told)
    answerS = 2 * told.heartbeat_s // so that one that hangs does not cost the lease
    log({ worker: told.worker })
    isAgain = await serve(told)
    stopAll('registering again') // what is left is not ours any more
    await Promise.all([...held.values()].map((run) => run.ended))
  }
  clearTimeout(timer)
}
