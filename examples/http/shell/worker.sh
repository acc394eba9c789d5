#!/bin/sh
# A worker of a pool over HTTP, in sh with curl, jq and setsid: `worker.sh DIRECTORY`.
#
# Each program in the directory is the handler of its name.  It is given a job as JSON on standard
# input and prints the result as JSON.  If it exits with 65 the job is not tried again; with any
# other code but 0 it is, and what it wrote to standard error says why.  One job at a time.
#     POOL_GATEWAYS    their addresses, with spaces between them
#     POOL_WEB_WORKER  a secret of the role `worker`
#     GRACE_S          for the job that runs when it is to leave (by SIGTERM, or a drain): 30
# So that no job runs in two places at a time:
#   - Who has no answer for `expires_in_s`, counted from when it asked, kills its handler with all
#     that it has started.  Somebody else may have the job soon.  So it does if the worker is killed.
#   - A job is held, and said to be, until what became of it has been answered.
#   - A job that is handed out again, because an answer was lost, is begun only if it was not.
set -u
handlers=$(cd "${1:?which directory?}" && pwd) || exit 2
tmp=$(mktemp -d) && cd "$tmp" || exit 2
printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$POOL_WEB_WORKER" >headers
gateway=${POOL_GATEWAYS%% *} leaving='' curl='' failed=0
trap 'rm -rf "$tmp"' EXIT
trap '[ -n "$leaving" ] || [ -z "$curl" ] || kill "$curl"; leave' TERM INT

# It leaves when it has ended what it does, or the grace is over.
leave() { [ -n "$leaving" ] || write until $(($(date +%s) + ${GRACE_S:-30})); leaving=yes; }
write() { echo "$2" >"$1.new" && mv "$1.new" "$1"; }
has_come() { [ -e "$1" ] && [ "$(date +%s)" -ge "$(cat "$1")" ]; }

# Ask a gateway PATH, for SECONDS at most, with what is in NAME.body; the answer is in NAME.answer
# and $status.  Fails where there is none: then the next gateway's turn has come.
ask() {
  sent=$(date +%s)
  curl --silent --max-time "$2" --header @headers --data-binary "@$3.body" \
    --output "$3.answer" --write-out '%{http_code}' "$gateway/v1/workers$1" >"$3.status" &
  curl=$!
  wait "$curl"
  curl='' status=$(cat "$3.status")
  case $status in 408 | 429) ;; [1-4]??) return 0 ;; esac
  next_gateway $POOL_GATEWAYS
  return 1
}

next_gateway() {
  while [ $# -gt 1 ] && [ "$1" != "$gateway" ]; do shift; done
  gateway=${2:-${POOL_GATEWAYS%% *}}
}

# Write down until when the answer NAME lets us go on: a second less, for what stopping takes.
renewed() { write deadline $((sent + $(jq '.expires_in_s | floor' "$1.answer") - 1)); }

refused() { jq -r '"\(.title): \(.detail)"' "$1.answer" >&2; failed=1; }

register() {
  ls "$handlers" | jq -Rnc '{handlers: [inputs], capacity: 1}' >me.body
  until ask '' 5 me; do [ -z "$leaving" ] && sleep 0.5 || exit 0; done
  if [ "$status" != 201 ]; then refused me; exit 1; fi
  renewed me
  worker=$(jq -r .token me.answer) heartbeat_s=$(jq -r .heartbeat_s me.answer)
  jq -nc --arg w "$worker" '{worker_token: $w, held: [], jobs_max: 1, wait_s: 20}' >poll.body
  jq -nc --arg w "$worker" '{worker_token: $w}' >leave.body
  jq -c '{worker}' me.answer
}

stop() { # the handler; the second time it is not asked
  touch stopped
  kill -s "${signal:-TERM}" -- "-$(cat pid)" 2>>kill.log
  signal=KILL
}

# Beside the handler: end it where our lease may be over soon, or the worker is no more.
guard() {
  while sleep 0.2 && [ ! -s exit ]; do
    if has_come deadline || has_come until || ! kill -0 $$ 2>>kill.log; then stop; fi
  done
}

# Beside the handler: renew, and end it where we are told to.
beat() {
  while sleep "$heartbeat_s" && [ ! -s exit ]; do
    ask /heartbeat 2 beat || ask /heartbeat 2 beat || continue
    if [ "$status" = 200 ] && ! jq -e '.register_again or .stop + .lost != []' beat.answer
    then renewed beat; else stop; fi
    [ "$(jq .drain beat.answer)" != true ] || kill $$
  done >>beat.log
}

# Run the job, and say what became of it until that is answered.
run() {
  token=$(jq -r .token job) handler=$(jq -r .handler job)
  jq -nc --arg w "$worker" --arg t "$token" '{worker_token: $w, held: [$t]}' >beat.body
  rm -f exit pid stopped
  (
    setsid sh -c 'echo $$ >pid; exec "$0" <job >result 2>errors' "$handlers/$handler"
    echo $? >exit
  ) &
  child=$!
  guard & guard=$!; beat & beat=$!
  until [ -s exit ]; do wait "$child"; done
  kill "$guard" "$beat" 2>>kill.log
  code=$(cat exit) outcome= retry=true
  echo '{}' >said
  if [ "$code" = 0 ]; then
    count=$(jq -s length result 2>>errors) why='what it prints must be one value in JSON'
    [ "$count" != 0 ] || echo null >result
    [ "${count:-2}" -gt 1 ] || tell /complete
    echo "$why" >>errors
  fi
  case $code in 0 | 65) retry=false ;; esac # another attempt would print the same
  if [ -z "$outcome" ] && [ -e stopped ]; then
    tell /release
  elif [ -z "$outcome" ]; then
    tail -c 2000 errors | jq -Rsc --arg code "$code" --argjson retry "$retry" \
      '{error: {type: "exit \($code)", message: .}, $retry}' >said
    tell /fail
  fi
  if [ -z "$outcome" ] && [ "$status" != 409 ] && [ "$status" != 410 ]; then # it is ours yet
    jq -nc --arg why "$why" '{error: {type: "refused", message: $why}, retry: false}' >said
    tell /fail
  fi
  jq -c --arg outcome "${outcome:-refused}" '{$outcome, key, id, attempt, epoch}' job
}

tell() { # what is `said` of the job, until it is answered
  jq -c --arg w "$worker" --arg t "$token" '{worker_token: $w, jobs: [{token: $t} + .]}' said >end.body
  if [ "$1" = /complete ]; then # as it was printed: jq rounds numbers, and mends text
    { sed 's/}]}$/,"result":/' end.body; cat result; echo '}]}'; } >whole && mv whole end.body
  fi
  until ask "$1" 5 end; do sleep 0.2; done
  outcome=$(jq -r '.jobs[0].outcome // empty' end.answer)
  why=$(jq -r '.jobs[0].problem.detail // .detail // empty' end.answer)
}

register
while [ -z "$leaving" ]; do
  if ! ask /poll 25 poll; then
    sleep 0.2
  elif [ "$status" = 410 ] || [ "$(jq .register_again poll.answer)" = true ]; then
    ask /leave 5 leave; register # by leaving it gives back what it never heard of
  elif [ "$status" != 200 ]; then
    refused poll; leave
  else
    renewed poll
    [ "$(jq .drain poll.answer)" = false ] || leave
    jq -c '.jobs[0] // empty' poll.answer >job
    # What comes too late is handed out again, or given back as it leaves.
    if [ -s job ] && [ -z "$leaving" ] && ! has_come deadline; then run; fi
  fi
done
until ask /leave 5 leave || has_come deadline; do sleep 0.5; done
exit "$failed"
