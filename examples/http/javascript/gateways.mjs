// What a worker asks the gateways of a pool, and how it says what went wrong: see worker.mjs.

import { setTimeout as sleep } from 'node:timers/promises'

export const NEVER = new AbortController().signal
export const after = (ms) => AbortSignal.timeout(Math.ceil(ms))

/** Gateways are as good as each other: whichever answers will do. */
export class Gateways {
  answerS = 5 // longer than any takes, beside what a poll waits
  #at = 0

  constructor(addresses, secret) {
    Object.assign(this, { addresses, secret })
  }

  /** Ask one after the other until one answers: [status, its answer, when we asked it]. */
  async ask(path, body, waitS = 0, until = NEVER) {
    const sent = JSON.stringify(body)
    for (let pauseMs = 50; ; pauseMs = Math.min(2 * pauseMs, 1000)) {
      until.throwIfAborted()
      const url = `${this.addresses[this.#at % this.addresses.length]}/v1/workers${path}`
      const sentMs = performance.now()
      try {
        const answer = await fetch(url, {
          method: 'POST',
          headers: { authorization: `Bearer ${this.secret}`, 'content-type': 'application/json' },
          body: sent,
          signal: AbortSignal.any([until, after(1000 * (waitS + this.answerS))]),
        })
        const told = await answer.json()
        const isBusy = answer.status >= 500 || [408, 429].includes(answer.status)
        if (!isBusy) return [answer.status, told, sentMs]
      } catch {
        until.throwIfAborted() // anything else is no answer
      }
      this.#at += 1
      await sleep(pauseMs)
    }
  }
}

/** Return whatever it is as a text that a gateway takes. */
export function text(what, max) {
  try {
    return String(what).slice(0, max).toWellFormed()
  } catch {
    return typeof what
  }
}

/** Return how far a job is as a gateway takes it. */
export function progressOf(done, total = null, note = '') {
  const isGood = [done, total ?? 0].every((n) => typeof n === 'number' && Math.abs(n) <= 1e15)
  if (!isGood) throw new TypeError('progress is told in numbers, up to 1e15')
  return { done, total, note: text(note, 1000) }
}

/** Return whatever was thrown as a failure that a gateway takes. */
export function failure(error) {
  const said = (name, usual) => {
    try {
      return error[name] ?? usual
    } catch { // null has nothing, and a getter may throw
      return usual
    }
  }
  const [type, message] = [text(said('name', 'Error'), 256), text(said('message', error), 2000)]
  const traceback = text(said('stack', ''), 20000)
  return { error: { type, message, traceback }, retry: said('retry', true) !== false }
}
