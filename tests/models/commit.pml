/* commit.pml - from pending to stable, with a worker killed between any two
 * steps (M7).
 *
 * Two workers publish NM messages each, with or without history, commit,
 * deliver to their own subscriber (if they have one) and answer their own
 * publishers. Worker 0 may be killed anywhere. At the end everything that is
 * whole in the ring is stable, delivered to whoever is interested, answered to
 * the living, and in the store exactly once.
 *
 * In step with src/broker/ring_commit.c (ring_commit, commit_locked) and
 * ring.c (ring_append, ring_may_sleep, ring_mark_dead). Spin is sequentially
 * consistent: where two processes each store a word and then load the other's,
 * the code has a full fence. -DDURABLE: a commit thread for each worker, which
 * waits for the store lock (ring_commit_wait). -DHIST=0|1, -DINTEREST=0..3
 * and -DONLY=0|1 (who publishes) fix a choice, -DCOARSE makes the question whom a batch concerns one step, to
 * make the search smaller.
 *
 * Guards that can be taken out; each must then fail:
 *   LOOK_BEFORE        head is looked at before the store lock is given back,
 *                      not after
 *   NO_DEATH_RING      the master does not ring the living after a death
 *   DEATH_RING_ASLEEP  it rings only those whose flag is up
 *   WAKE_BY_INTEREST   the origins of the batch's records are not woken
 *   NO_COMMITTED       what the store covers is put again
 *   STABLE_FIRST       stable moves before the store commits
 *   VOID_AT_DEATH      a committer voids what a dead one left
 *   NO_RECHECK         sleeps without looking at stable again
 *   SLEEP_AFTER_ROUNDS sleeps though its last round left something pending (to
 *                      be seen with -DROUNDS=1, which alone must pass)
 */
#ifndef NM
#define NM 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define NW 2
#define RN (NM * NW)
#ifdef ONLY
#define OF(worker) (NM * (worker == ONLY)) /* messages */
#else
#define OF(worker) NM
#endif
#define NONE 9

byte head, stable, last_id, committed;
byte id[RN + 1], origin[RN + 1];
bit has_history[RN + 1], is_void[RN + 1];
byte stored[RN + 2]; /* times put into the store, by id */
byte ring_owner = NONE, store_owner = NONE;
bit sleeping[NW], rung[NW], dead[NW], interest[NW], kicked[NW];
byte cursor[NW], answered[NW], refused[NW], voided[NW];

#define IS_FREE(owner) (owner == NONE || dead[owner])
#ifdef NO_COMMITTED
#define IS_NEW(id) true
#else
#define IS_NEW(id) (id > known)
#endif
#ifdef WAKE_BY_INTEREST
#define IS_ORIGIN(i) false
#else
#define IS_ORIGIN(i) ((origins >> i) & 1)
#endif

/* Steps 2 to 5, under the store lock. Records below head never change, so going
 * over them is one step; so is the transaction, which is all or nothing. */
inline commit(i, h, known, origins, any) {
  h = head;
  d_step {
    known = committed; i = stable; origins = 0; any = 0;
    do
    :: i < h ->
#ifdef VOID_AT_DEATH
       if
       :: owner_died && stored[id[i]] == 0 -> is_void[i] = 1
       :: else
       fi;
#endif
       origins = origins | (1 << origin[i]);
       any = any || (has_history[i] && !is_void[i]);
       i++
    :: else -> break
    od
  };
#ifdef STABLE_FIRST
  stable = h;
#endif
  if
  :: any ->
     d_step {
#ifdef STABLE_FIRST
       i = 0;
#else
       i = stable;
#endif
       do
       :: i < h ->
          if
          :: has_history[i] && !is_void[i] && IS_NEW(id[i]) -> stored[id[i]]++
          :: else
          fi;
          i++
       :: else -> break
       od;
       committed = id[h - 1]
     }
  :: else
  fi;
  stable = h
}

/* Whom the batch concerns: flags and counts, after stable moved; each worker's
 * words are read on their own. */
inline concerns(i, origins, concerned) {
#ifdef COARSE
  d_step {
    concerned = 0; i = 0;
    do
    :: i < NW ->
       if
       :: sleeping[i] && (interest[i] || IS_ORIGIN(i)) ->
          concerned = concerned | (1 << i)
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
#else
  concerned = 0; i = 0;
  do
  :: i < NW ->
     d_step {
       if
       :: sleeping[i] && (interest[i] || IS_ORIGIN(i)) ->
          concerned = concerned | (1 << i)
       :: else
       fi;
       i++
     }
  :: else -> break
  od
#endif
}

/* Exchange the flag; if it was up, write the descriptor. */
inline wake(i, concerned, was_up) {
  i = 0;
  do
  :: i < NW ->
     d_step {
       was_up = ((concerned >> i) & 1) && sleeping[i];
       if :: was_up -> sleeping[i] = 0 :: else i++ fi
     };
     if :: was_up -> d_step { rung[i] = 1; was_up = 0; i++ } :: else fi
  :: else -> break
  od
}

inline deliver(i) {
  do
  :: cursor[me] < stable ->
     d_step {
       i = cursor[me];
       assert(id[i] > last); /* one order */
       last = id[i];
       /* delivered: a restart would know it, once */
       assert(is_void[i] || !has_history[i] || stored[id[i]] == 1);
       if
       :: origin[i] == me && !is_void[i] -> answered[me]++ /* 201 */
       :: origin[i] == me && is_void[i] -> voided[me]++
       :: else
       fi;
       cursor[me] = cursor[me] + 1
     }
  :: else -> break
  od
}

/* A publish, or 503 when the lock cannot be had. */
inline publish(i) {
  if
  :: d_step { IS_FREE(ring_owner) -> ring_owner = me };
     i = last_id + 1;
     last_id = i;
     d_step { id[head] = i; has_history[head] = hist; origin[head] = me };
     head = head + 1;
     ring_owner = NONE
  :: !IS_FREE(ring_owner) -> refused[me]++
  fi
}

proctype worker(byte me) {
  byte n, i, h, known, origins, concerned, last, round;
  bit got, any, hist, owner_died, must_look;
  n = NM - OF(me);
  {
  do
  :: if
     :: n < NM ->
#ifdef HIST
        hist = HIST;
#else
        if :: hist = 0 :: hist = 1 fi;
#endif
        publish(i);
        n++
     :: n >= NM || rung[me] || cursor[me] < stable -> skip
     fi;
     must_look = 0;
#ifdef DURABLE
     if :: head != stable -> kicked[me] = 1 :: else fi;
#else
     round = 0;
     do
     :: round < ROUNDS && head != stable ->
        d_step {
          owner_died = 0;
          if
          :: IS_FREE(store_owner) ->
             owner_died = (store_owner != NONE);
             store_owner = me; got = 1
          :: else -> got = 0
          fi
        };
        if :: !got -> break :: else fi; /* who has it looks again */
        origins = 0; concerned = 0;
#ifdef LOOK_BEFORE
        do
        :: head != stable ->
           commit(i, h, known, origins, any);
           concerns(i, origins, concerned);
           wake(i, concerned, got)
        :: else -> break
        od;
        store_owner = NONE;
        break;
#else
        if
        :: head != stable ->
           commit(i, h, known, origins, any);
           concerns(i, origins, concerned)
        :: else
        fi;
        store_owner = NONE; /* fence; and look again: the loop */
        wake(i, concerned, got);
        round++
#endif
     :: round == ROUNDS && head != stable ->
#ifndef SLEEP_AFTER_ROUNDS
        must_look = 1;
#endif
        break
     :: head == stable -> break
     od;
#endif
     deliver(i);
     skip;
     d_step {
       i = 0; h = 0; known = 0; origins = 0; concerned = 0; hist = 0; got = 0;
       any = 0; owner_died = 0; round = 0
     };
     if
     :: must_look -> skip
     :: else ->
        sleeping[me] = 1; /* fence */
        if
#ifndef NO_RECHECK
        :: stable != cursor[me] -> sleeping[me] = 0
#endif
        :: else ->
end_sleep:
           if
           :: rung[me] -> skip
           :: n < NM -> skip /* a client's bytes woke it */
           fi;
           sleeping[me] = 0;
           rung[me] = 0
        fi
     fi
  od
  } unless { dead[me] }
}

#ifdef DURABLE
proctype committer(byte me) { /* dies with its worker */
  byte i, h, known, origins, concerned;
  bit got, any, owner_died;
  {
end_idle:
  do
  :: kicked[me] ->
     kicked[me] = 0;
     d_step {
       IS_FREE(store_owner) -> owner_died = (store_owner != NONE);
       store_owner = me
     };
     origins = 0; concerned = 0;
     if
     :: head != stable ->
        commit(i, h, known, origins, any);
        concerns(i, origins, concerned)
     :: else
     fi;
     store_owner = NONE;
     wake(i, concerned, got);
     skip;
     d_step {
       i = 0; h = 0; known = 0; origins = 0; concerned = 0; got = 0; any = 0;
       owner_died = 0
     }
  od
  } unless { dead[me] }
}
#endif

/* SIGKILL, and then the master, after waitpid. */
proctype killer() {
  if
  :: dead[0] = 1;
#ifdef DEATH_RING_ASLEEP
     if :: sleeping[1] -> sleeping[1] = 0; rung[1] = 1 :: else fi
#elif !defined(NO_DEATH_RING)
     rung[1] = 1
#endif
  :: skip
  fi
}

proctype monitor() {
  timeout; /* nothing can move any more */
  assert(head == stable);
  assert(!interest[1] || cursor[1] == stable);
  assert(answered[1] + refused[1] == OF(1));
  assert(dead[0] || ((!interest[0] || cursor[0] == stable) &&
                     answered[0] + refused[0] == OF(0)))
}

init {
  atomic {
#ifdef INTEREST /* both bits fixed, to make the search smaller */
    interest[0] = INTEREST & 1; interest[1] = INTEREST >> 1;
#else
    if :: interest[0] = 1 :: skip fi;
    if :: interest[1] = 1 :: skip fi;
#endif
    run worker(0); run worker(1);
#ifdef DURABLE
    run committer(0); run committer(1);
#endif
    run killer(); run monitor()
  }
}
