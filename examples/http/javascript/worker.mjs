// A worker of a pool over HTTP, for Node 20 or later and nothing else: see main.mjs.
// So that no job runs in two places at a time:
//   - Who has no answer for `expires_in_s`, counted from when it asked, stops its handlers
//     (`job.signal` aborts): somebody else may have their jobs soon.
//   - A job is held, and said to be, until what became of it has been answered.
//   - One that is handed out again, because an answer was lost, is known by its token.
//   - Told to leave, by the signal or a drain, it takes no more: `leave`.  It still polls, for what
//     an answer that was lost may have brought: that it gives back.

import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Gateways, NEVER, after, failure, progressOf } from './gateways.mjs'

/** Work until the signal aborts: then end what runs within the grace, give back the rest, leave. */
export async function work({
  gateways, secret, // addresses, of which any will do; a secret of the role `worker`
  handlers, // { name: async (job, ...args) => result }
  capacity = 1, // jobs at a time
  graceS = 30,
  signal = NEVER,
  log = (line) => console.log(JSON.stringify(line)),
}) {
  const held = new Map() // token -> { job, item, abort, ended, isLost }
  const leave = new AbortController()
  const all = new Gateways(gateways, secret)
  let deadlineMs = 0, timer // of our own clock: from then on our lease may be over
  const stop = (run, why) => run?.abort.abort(new Error(why))
  const stopAll = (why) => held.forEach((run) => stop(run, why))
  const renewed = (sentMs, told) => {
    deadlineMs = sentMs + 1000 * told.expires_in_s
    clearTimeout(timer)
    timer = setTimeout(stopAll, deadlineMs - performance.now(), 'no gateway answers in time')
  }

  function begin(worker_token, job) {
    const run = { job, item: { token: job.token }, known: new Set(), abort: new AbortController() }
    job.signal = run.abort.signal
    job.progress = (...told) => void (run.item.progress = progressOf(...told))
    job.save = async (state) => {
      const save = { worker_token, token: job.token, number: ++job.saves, state }
      const [status, told] = await all.ask('/save', save)
      if (status !== 200) throw new Error(told.detail)
    }
    held.set(job.token, run)
    if (leave.signal.aborted) stop(run, 'leaving') // it is given back, and does not begin
    run.ended = settle(worker_token, run) // until what became of it is answered
  }

  async function settle(worker_token, run) {
    const { job, abort, job: { token, key, id, attempt, epoch } } = run
    const tell = async (path, said) => {
      const [status, answer] = await all.ask(path, { worker_token, jobs: [{ token, ...said }] })
      const { outcome, problem = answer } = answer.jobs?.[0] ?? {}
      if (outcome) return outcome
      const isOver = [409, 410].includes(status) // it is somebody else's, or has ended
      throw Object.assign(new Error(problem.detail), { name: problem.code, retry: false, isOver })
    }
    let outcome
    try {
      abort.signal.throwIfAborted()
      const result = (await handlers[job.handler](job, ...job.args)) ?? null
      outcome = await tell('/complete', { result })
    } catch (error) { // a result may be refused, too
      const isOver = abort.signal.aborted && !run.fault
      const telling = isOver ? tell('/release') : tell('/fail', run.fault ?? failure(error))
      outcome = await telling.catch((no) => no.isOver || tell('/fail', failure(no))).catch(() => {})
    }
    log({ outcome: typeof outcome === 'string' ? outcome : 'refused', key, id, attempt, epoch })
    held.delete(token)
  }

  function heed(told) {
    for (const { token, reason } of [...told.stop, ...told.lost]) stop(held.get(token), reason)
    for (const { token } of told.lost) if (held.has(token)) held.get(token).isLost = true
    for (const { token, id, value, encoding: as } of told.messages) {
      const run = held.get(token)
      if (!run?.job.onMessage || run.known.has(id)) continue
      run.known.add(run.item.seen = id) // it is told again until a request says so
      if (run.known.size > 1000) run.known.delete(run.known.values().next().value)
      const call = async () => run.job.onMessage(as === 'base64' ? Buffer.from(value, as) : value)
      call().catch((error) => stop(run, 'a message failed', run.fault = failure(error)))
    }
  }

  // Poll until there is nothing left to do; says whether to register again.
  async function serve({ token: worker_token, heartbeat_s, poll_max_s }) {
    for (let refusal; held.size || !leave.signal.aborted; ) {
      const room = leave.signal.aborted ? 0 : Math.max(0, capacity - held.size)
      const wait_s = !room ? 0 : held.size ? heartbeat_s : Math.min(20, poll_max_s)
      const named = [...held.values()].filter((run) => !run.isLost)
      const progress = named.map((run) => run.item.progress)
      const poll = { worker_token, held: named.map((run) => run.item), jobs_max: room, wait_s }
      const asking = all.ask('/poll', poll, wait_s, room ? leave.signal : NEVER)
      const answered = await asking.catch(() => {})
      if (!answered) continue // what that poll would have brought the next one brings
      const [status, told, sentMs] = answered
      if (status === 410 || told.register_again) return true
      if (status !== 200) {
        if (refusal) throw refusal
        refusal = new Error(`${told.title}: ${told.detail}`)
        for (const run of named) run.item = { token: run.job.token } // all that may be wrong in it
        continue
      }
      refusal = undefined
      named.forEach(({ item }, n) => { // told again it would be progress again
        if (item.progress === progress[n]) delete item.progress
      })
      renewed(sentMs, told)
      heed(told)
      if (told.drain) leave.abort()
      for (const job of told.jobs) { // what comes too late is handed out again
        if (!held.has(job.token) && performance.now() < deadlineMs) begin(worker_token, job)
      }
      if (!room || held.size >= capacity) {
        const ends = Array.from(held.values(), (run) => run.ended)
        await Promise.race([sleep(1000 * heartbeat_s), ...ends])
      }
    }
    return false
  }

  // Serve; then end what is left, which is not ours any more or soon will not be.
  async function stay(told) {
    let isAgain
    try {
      return (isAgain = await serve(told))
    } finally {
      stopAll('it is over')
      await Promise.all(Array.from(held.values(), (run) => run.ended))
      const withinMs = Math.max(1000 * all.answerS, isAgain ? 0 : deadlineMs - performance.now())
      await all.ask('/leave', { worker_token: told.token }, 0, after(withinMs)).catch(() => {})
    }
  }
  leave.signal.onabort = () => setTimeout(stopAll, 1000 * graceS, 'leaving').unref()
  signal.addEventListener('abort', () => leave.abort())
  if (signal.aborted) leave.abort()
  const me = { handlers: Object.keys(handlers), capacity, host: hostname(), pid: process.pid }
  for (let isAgain = true; isAgain && !leave.signal.aborted; ) {
    const answered = await all.ask('', me, 0, leave.signal).catch(() => {})
    if (!answered) break // told to leave before anybody has answered
    const [status, told, sentMs] = answered
    if (status !== 201) throw new Error(`${told.title}: ${told.detail}`)
    renewed(sentMs, told)
    all.answerS = 2 * told.heartbeat_s // so that one that hangs does not cost the lease
    log({ worker: told.worker })
    isAgain = await stay(told)
  }
  clearTimeout(timer)
}
