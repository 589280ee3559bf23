/* SPDX-License-Identifier: MIT */
/* tests/model/queue.pml - post, drain, sleep and stop, for every interleaving.
 *
 * Purpose   The memory order of the rings and the doorbell cannot be tested to the end by running.
 *           This model has one step per shared access, and a store buffer in front of each
 *           publisher's stores as x86-64 has one, so Spin can look at all orders.
 *           tests/model/test_model.sh runs it, and shows that every planted fault is found.
 * Sizes     P producers of J jobs each, CAP slots (a power of two), batches of up to BATCH.
 * Roads     the shared ring of mpsc.h; with -DSPSC the rings of spsc.h, one a producer.
 * Proved    each job arrives once, filled, in its producer's order; FULL only if the ring was full
 *           at some instant of the call (shared ring); nobody sleeps for ever (no invalid end
 *           state); the submitter leaves after the stop with nothing left behind.
 * Faults    -DFAULT_... leaves out one rule; each is named where it acts.
 * Indices   are bytes and begin near their wrap.
 */
#ifndef P
#define P 2
#endif
#ifndef J
#define J 4
#endif
#ifndef CAP
#define CAP 2
#endif
#ifndef BATCH
#define BATCH 2
#endif
#define START 253
#define IDS   13 /* P * J + 1 at most */

bool filled[IDS];      /* what the job's pointer points to */
byte next[P];          /* submitter: the producer's next job */
byte sleepers;         /* doorbell.h */
bool rung;             /* the count differs from the snapshot: all that one sleeper can tell */
bool stop;
byte finished;         /* producers that are done */

/* Store buffers: a slot's store, then an index's, in that order. `set` says that one is waiting. */
bool slot_set[P];
byte slot_at[P];
byte slot_value[P];
bool tail_set[P];
byte tail_value[P];
bool stop_set;

#ifdef SPSC
byte tail[P];
byte head[P];
byte ring[P * CAP];
#else
byte p_head = START;
byte c_head = START;
byte ring[CAP];
bool was_full[P];      /* the ring was full at some instant of the producer's call */
#endif

#define DISTANCE(a, b) (((a) - (b)) & 255)

/* ------------------------------------------------------------------ memory */

inline flushed(m)
{
    slot_set[m] = false;
    slot_at[m] = 0;
    slot_value[m] = 0
}

#ifdef SPSC
inline tail_flushed(m)
{
    tail_set[m] = false;
    tail_value[m] = 0
}
#endif

active proctype memory()
{
end:
    do
    :: atomic { slot_set[0] -> ring[slot_at[0]] = slot_value[0]; flushed(0) }
    :: atomic { slot_set[1] -> ring[slot_at[1]] = slot_value[1]; flushed(1) }
#if P > 2
    :: atomic { slot_set[2] -> ring[slot_at[2]] = slot_value[2]; flushed(2) }
#endif
#ifdef SPSC
#ifdef FAULT_TAIL_BEFORE_SLOT /* no release before p_tail, on a machine that reorders stores */
#define ORDERED(i) true
#else
#define ORDERED(i) !slot_set[i]
#endif
    :: atomic { tail_set[0] && ORDERED(0) -> tail[0] = tail_value[0]; tail_flushed(0) }
    :: atomic { tail_set[1] && ORDERED(1) -> tail[1] = tail_value[1]; tail_flushed(1) }
#if P > 2
    :: atomic { tail_set[2] && ORDERED(2) -> tail[2] = tail_value[2]; tail_flushed(2) }
#endif
#endif
    :: atomic { stop_set -> stop = true; stop_set = false }
    od
}

/* ------------------------------------------------------------------ doorbell.h */

inline ring_if_asleep(drained)
{
#ifndef FAULT_NO_PUBLISHER_FENCE
    drained;
#endif
    if
    :: sleepers != 0 -> rung = true
    :: else
    fi
}

/* ------------------------------------------------------------------ producers */

#ifdef SPSC

proctype producer(byte me)
{
    byte k;
    byte own = START;  /* p_tail, which only this thread writes */
    byte seen = START; /* the remembered c_head */
    do
    :: k == J -> break
    :: else ->
        filled[me * J + k + 1] = true;
        if
#ifdef FAULT_ONE_TOO_MANY
        :: DISTANCE(own, seen) > CAP ->
#else
        :: DISTANCE(own, seen) >= CAP ->
#endif
            seen = head[me];
            if
            :: DISTANCE(own, seen) >= CAP -> DISTANCE(own, head[me]) < CAP; seen = head[me]
            :: else
            fi
        :: else
        fi;
        atomic {
            !slot_set[me];
            slot_at[me] = me * CAP + own % CAP;
            slot_value[me] = me * J + k + 1;
            slot_set[me] = true
        };
        own++;
        atomic { !tail_set[me]; tail_value[me] = own; tail_set[me] = true };
        ring_if_asleep(!slot_set[me] && !tail_set[me]);
        k++
    od;
    finished++
}

#else

inline mark_full()
{
    if
    :: DISTANCE(p_head, c_head) == CAP ->
        was_full[0] = true;
        was_full[1] = true;
#if P > 2
        was_full[2] = true;
#endif
    :: else
    fi
}

proctype producer(byte me)
{
    byte k;
    byte p;
    byte c;
    do
    :: k == J -> break
    :: else ->
        filled[me * J + k + 1] = true;
call:
        atomic { was_full[me] = DISTANCE(p_head, c_head) == CAP };
#ifdef FAULT_LOADS_SWAPPED /* c_head before p_head */
        c = c_head;
#endif
        p = p_head;
again:
#ifndef FAULT_LOADS_SWAPPED
        c = c_head;
#endif
        if
#ifdef FAULT_ONE_TOO_MANY
        :: DISTANCE(p, c) <= CAP ->
#else
        :: DISTANCE(p, c) < CAP ->
#endif
#ifdef FAULT_PLACE_WITHOUT_CAS
            p_head = p + 1;
            mark_full()
#else
            atomic {
                if
                :: p_head == p -> p_head++; mark_full()
                :: else -> p = p_head; goto again
                fi
            }
#endif
        :: else ->
#ifndef FAULT_NO_SECOND_READ
            if
            :: p_head != p -> p = p_head; goto again
            :: else
            fi;
#endif
            assert(was_full[me]); /* FULL is the answer */
            DISTANCE(p_head, c_head) < CAP; /* the host posts again later */
            goto call
        fi;
        atomic {
            !slot_set[me];
            slot_at[me] = p % CAP;
            slot_value[me] = me * J + k + 1;
            slot_set[me] = true
        };
        atomic { p = 0; c = 0; was_full[me] = false };
        ring_if_asleep(!slot_set[me]);
        k++
    od;
    finished++
}

#endif

proctype stopper()
{
    finished == P;
    stop_set = true;
#ifndef FAULT_STOP_DOES_NOT_RING
    ring_if_asleep(!stop_set)
#endif
}

/* ------------------------------------------------------------------ the submitter */

inline receive(id)
{
    d_step {
        assert(id != 0);
        assert(filled[id]);
        assert(next[(id - 1) / J] == (id - 1) % J);
        next[(id - 1) / J]++
    }
}

#ifdef SPSC

#define EMPTY0 (tail_seen[0] == head[0] && tail[0] == head[0])
#define EMPTY1 (tail_seen[1] == head[1] && tail[1] == head[1])
#if P > 2
#define EMPTY (EMPTY0 && EMPTY1 && tail_seen[2] == head[2] && tail[2] == head[2])
#else
#define EMPTY (EMPTY0 && EMPTY1)
#endif

inline pop()
{
    n = 0;
    r = 0;
    do
    :: r == P -> break
    :: else ->
        if
        :: DISTANCE(tail_seen[r], head[r]) < BATCH -> tail_seen[r] = tail[r]
        :: else
        fi;
        i = 0;
        most = DISTANCE(tail_seen[r], head[r]);
        if
        :: most > BATCH -> most = BATCH
        :: else
        fi;
        at = head[r];
#ifdef FAULT_INDEX_BEFORE_SLOTS
        head[r] = at + most;
#endif
        do
        :: i == most -> break
        :: else ->
            receive(ring[r * CAP + ((at + i) & 255) % CAP]);
            i++
        od;
#ifndef FAULT_INDEX_BEFORE_SLOTS
        head[r] = at + most;
#endif
        n = n + most;
        r++
    od
}

#else

#define EMPTY (ring[c_head % CAP] == 0)

inline pop()
{
    n = 0;
    do
    :: n == BATCH -> break
    :: else ->
        at = ((c_head + n) & 255) % CAP;
        i = ring[at];
        if
        :: i == 0 -> break
        :: else
        fi;
        receive(i);
#ifndef FAULT_INDEX_BEFORE_SLOTS
        ring[at] = 0;
#endif
        n++
    od;
    if
    :: n != 0 ->
#ifdef FAULT_INDEX_BEFORE_SLOTS /* a producer may fill the slot that is cleared afterwards */
        most = c_head;
        c_head = c_head + n;
        i = 0;
        do
        :: i == n -> break
        :: else -> ring[((most + i) & 255) % CAP] = 0; i++
        od
#else
        c_head = c_head + n
#endif
    :: else
    fi
}

#endif

proctype submitter()
{
    byte n;
    byte i;
    byte r;
    byte at;
    byte most;
    bool stopping;
    bool nothing;
#ifdef SPSC
    byte tail_seen[P];
    tail_seen[0] = START;
    tail_seen[1] = START;
#if P > 2
    tail_seen[2] = START;
#endif
#endif
    do
    ::
        pop();
        atomic { i = 0; r = 0; at = 0; most = 0 }; /* fewer states that differ in nothing */
        if
        :: n != 0 ->
#ifdef FAULT_ONE_WAKE_ONE_JOB /* sleeps after each batch without another look */
            rung = false; /* the snapshot */
            sleepers++;
            rung;
            sleepers--
#endif
        :: else ->
#ifdef FAULT_LOOK_BEFORE_BEGIN
            stopping = stop;
            nothing = EMPTY;
#endif
#ifndef FAULT_SNAPSHOT_AFTER_LOOK
            rung = false; /* the snapshot */
#endif
            sleepers++; /* sleep_begin: a locked instruction, and so a fence */
#ifndef FAULT_LOOK_BEFORE_BEGIN
            stopping = stop;
            nothing = EMPTY;
#endif
#ifdef FAULT_SNAPSHOT_AFTER_LOOK
            rung = false; /* the snapshot */
#endif
            if
            :: nothing && stopping -> break
            :: nothing && !stopping -> rung /* wait */
            :: else
            fi;
            sleepers--
        fi;
        atomic { n = 0; stopping = false; nothing = false }
    od;
    sleepers--;
    i = 0;
    do
    :: i == P -> break
    :: else -> assert(next[i] == J); i++
    od
}

init
{
    atomic {
#ifdef SPSC
        tail[0] = START;
        tail[1] = START;
        head[0] = START;
        head[1] = START;
#if P > 2
        tail[2] = START;
        head[2] = START;
#endif
#endif
        run submitter();
        run stopper();
        run producer(0);
        run producer(1);
#if P > 2
        run producer(2);
#endif
    }
}
