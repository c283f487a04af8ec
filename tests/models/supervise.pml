/* supervise.pml - the master and its workers: crash, TERM, rolling restart,
 * watchdog (M6).
 *
 * Two worker slots, three ring slots (one spare, for a replacement). A process
 * is known by its ring slot, which is its own until it was reaped. Any process
 * may crash, hang, or close its control socket some time before it dies. For
 * each worker slot exactly one of {a worker, a pending respawn, given up} holds
 * at all times until TERM (I12); no ring slot ever has two processes; and the
 * end comes: all there, or, after TERM, all gone.
 *
 * Guards that can be taken out; each must then fail:
 *   REUSE_AT_EOF      a ring slot is used again when the control socket ends,
 *                     not when the process was reaped
 *   RESPAWN_OLD       an old worker that dies is respawned although its
 *                     replacement is there
 *   RESPAWN_AT_STOP   a death after TERM is answered with a respawn
 *   KEEP_PENDING      TERM forgets the respawns that are pending
 *   RESTART_AT_ONCE   a restart begins the next slot before the last is done
 *   NO_WATCHDOG       a worker that hangs is not killed
 *   NO_DEADLINE       a worker that hangs while draining is not killed
 */
#define WORKERS 2
#define SLOTS 3
#define NONE 9
#ifndef CRASHES
#define CRASHES 3
#endif
#define GIVE_UP 2 /* deaths before READY in a row */

mtype = { FREE, STARTING, READY, HUNG, LEAVING, DRAINING, STUCK, DEAD };

mtype process[SLOTS];
byte role[SLOTS];     /* its worker slot */
byte at[WORKERS];     /* ring slot of the worker, or NONE */
byte fresh[WORKERS];  /* ring slot of its replacement, or NONE */
bit pending[WORKERS], given_up[WORKERS], was_ready[SLOTS], seen_eof[SLOTS];
byte failures[WORKERS];
byte crashes;
bit is_told_to_stop, is_stopping, has_restarted, is_restarting;
byte turn;      /* of the restart */
bit is_leaving; /* its old worker is not reaped yet */

#define IS_ALIVE(r) (process[r] == STARTING || process[r] == READY || \
                     process[r] == HUNG || process[r] == DRAINING)

#ifdef REUSE_AT_EOF
#define IS_UNUSED(r) (process[r] == FREE || seen_eof[r])
#else
#define IS_UNUSED(r) (process[r] == FREE)
#endif
#ifdef RESPAWN_OLD
#define RESPAWNS_OLD true
#else
#define RESPAWNS_OLD false
#endif
#ifdef RESPAWN_AT_STOP
#define MAY_RESPAWN true
#else
#define MAY_RESPAWN (!is_stopping)
#endif
#ifdef NO_WATCHDOG
#define HAS_WATCHDOG false
#else
#define HAS_WATCHDOG true
#endif
#ifdef NO_DEADLINE
#define HAS_DEADLINE false
#else
#define HAS_DEADLINE true
#endif
#ifdef RESTART_AT_ONCE
#define LAST_IS_DONE true
#else
#define LAST_IS_DONE (fresh[0] == NONE && fresh[1] == NONE && !is_leaving)
#endif
#define ANY(state)                                                             \
  (process[0] == state || process[1] == state || process[2] == state)
/* I12 */
#define HOLDS(w) ((at[w] != NONE) + pending[w] + given_up[w] == 1)

/* What the process in a ring slot does by itself. */
proctype world(byte r) {
end_world:
  do
  :: atomic {
       process[r] == STARTING ->
       process[r] = READY;
       was_ready[r] = 1;
       failures[role[r]] = 0
     }
  :: atomic { process[r] == DRAINING -> process[r] = DEAD }
  :: atomic { process[r] == LEAVING -> process[r] = DEAD }
  :: atomic {
       IS_ALIVE(r) && crashes < CRASHES ->
       crashes++;
       if
       :: process[r] = DEAD
       :: process[r] = LEAVING
       :: process[r] == READY -> process[r] = HUNG
       :: process[r] == DRAINING -> process[r] = STUCK
       fi
     }
  od
}

inline start(w, where) {
  where = 0;
  do
  :: where < SLOTS && !IS_UNUSED(where) -> where++
  :: else -> break
  od;
  assert(where < SLOTS);            /* there is always one */
  assert(process[where] == FREE); /* never two on one */
  process[where] = STARTING;
  role[where] = w;
  was_ready[where] = 0;
  seen_eof[where] = 0
}

/* The worker of slot w in ring slot r is gone. */
inline lost(w, r) {
  if
  :: fresh[w] == r -> /* the old one goes on, the restart stops */
     fresh[w] = NONE;
     is_restarting = 0
  :: at[w] == r && fresh[w] != NONE && !RESPAWNS_OLD ->
     at[w] = fresh[w]; /* the replacement is the worker now */
     fresh[w] = NONE
  :: at[w] == r && (fresh[w] == NONE || RESPAWNS_OLD) ->
     at[w] = NONE;
     if
     :: !was_ready[r] -> failures[w]++
     :: else
     fi;
     if
     :: failures[w] >= GIVE_UP -> given_up[w] = 1
     :: else -> pending[w] = 1
     fi
  :: else /* an old one that was let go */
  fi
}

inline drain(r) {
  if
  :: process[r] == STARTING || process[r] == READY -> process[r] = DRAINING
  :: process[r] == HUNG -> process[r] = STUCK
  :: else
  fi
}

inline find(r, state) {
  r = 0;
  do
  :: process[r] != state -> r++
  :: else -> break
  od
}

proctype master() {
  byte r, w, where;
  atomic {
    start(0, where); at[0] = where;
    start(1, where); at[1] = where
  }
end_master:
  do
  :: atomic { /* waitpid: marked dead in the ring, all others rung */
       ANY(DEAD) ->
       find(r, DEAD);
       w = role[r];
       process[r] = FREE;
       if
       :: at[w] != r && fresh[w] != r -> is_leaving = 0
       :: else
       fi;
       if
       :: MAY_RESPAWN -> lost(w, r)
       :: else
       fi;
       assert(is_stopping || (HOLDS(0) && HOLDS(1)));
       r = 0; w = 0
     }
#ifdef REUSE_AT_EOF
  :: atomic {
       !is_stopping && ANY(LEAVING) ->
       find(r, LEAVING);
       if
       :: !seen_eof[r] -> seen_eof[r] = 1; lost(role[r], r)
       :: else
       fi;
       r = 0
     }
#endif
  :: atomic { /* the time of a respawn has come */
       pending[0] || pending[1] ->
       if :: pending[0] -> w = 0 :: else -> w = 1 fi;
       pending[w] = 0;
       start(w, where);
       at[w] = where;
       w = 0; where = 0
     }
  :: atomic { /* the watchdog only kills; waitpid does the rest */
       HAS_WATCHDOG && ANY(HUNG) ->
       find(r, HUNG);
       process[r] = DEAD;
       r = 0
     }
  :: atomic { /* the end of the drain time */
       HAS_DEADLINE && ANY(STUCK) ->
       find(r, STUCK);
       process[r] = DEAD;
       r = 0
     }
  :: atomic { /* USR1, once */
       !is_stopping && !has_restarted ->
       has_restarted = 1;
       is_restarting = 1
     }
  :: atomic { /* one replacement at a time */
       is_restarting && turn < WORKERS && LAST_IS_DONE && at[turn] != NONE ->
       start(turn, where);
       fresh[turn] = where;
       turn++;
       where = 0
     }
  :: atomic { /* a replacement is READY: the old one drains */
       !is_stopping &&
       ((fresh[0] != NONE && process[fresh[0]] == READY) ||
        (fresh[1] != NONE && process[fresh[1]] == READY)) ->
       if
       :: fresh[0] != NONE && process[fresh[0]] == READY -> w = 0
       :: else -> w = 1
       fi;
       r = at[w];
       assert(r != NONE); /* else the slot has two: this and a respawn */
       at[w] = fresh[w];
       fresh[w] = NONE;
       is_leaving = 1;
       drain(r);
       assert(HOLDS(0) && HOLDS(1));
       r = 0; w = 0
     }
  :: atomic { /* TERM */
       is_told_to_stop && !is_stopping ->
       is_stopping = 1;
       is_restarting = 0;
#ifndef KEEP_PENDING
       pending[0] = 0; pending[1] = 0;
#endif
       drain(0); drain(1); drain(2)
     }
  od
}

#define IS_SETTLED(w)                                                          \
  (fresh[w] == NONE && !pending[w] &&                                          \
   (given_up[w] || process[at[w]] == READY))

/* Nothing can move any more. */
proctype monitor() {
  timeout;
  if
  :: is_stopping ->
     assert(process[0] == FREE && process[1] == FREE && process[2] == FREE);
     assert(!pending[0] && !pending[1])
  :: else -> assert(IS_SETTLED(0) && IS_SETTLED(1) && !is_leaving)
  fi
}

init {
  atomic {
    process[0] = FREE; process[1] = FREE; process[2] = FREE;
    at[0] = NONE; at[1] = NONE; fresh[0] = NONE; fresh[1] = NONE;
    run world(0); run world(1); run world(2); run master(); run monitor()
  }
  if :: is_told_to_stop = 1 :: skip fi
}
