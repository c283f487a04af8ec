/* sock.h - connections by id: reading, a small write queue, offers.
 *
 * A connection is named by a uuid: its descriptor and a generation that grows
 * with each life of that descriptor and cannot wrap in practice, so an id never
 * names two connections and a stale one is a clean EBADF for ever. The
 * invariant of the writing half: accepted bytes leave once and in order, or the
 * connection is closed.
 *
 * Everything here belongs to the loop's thread of the process that accepted the
 * connection. */
#ifndef FACIL_SOCK_H
#define FACIL_SOCK_H

#include "buf.h"
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

_Static_assert(sizeof(intptr_t) == 8, "a uuid needs 64 bits");

/* Bits 0-23 descriptor, bits 24-62 generation. Always > 0; -1 is "none". */
#define sock_uuid2fd(uuid) ((int)((uuid)&0xFFFFFF))

/* Whether `uuid` names a connection that is open (also one that is closing). */
FACIL_PUBLIC bool sock_isvalid(intptr_t uuid);

/* The uuid that lives on `fd` now, or -1. */
FACIL_PUBLIC intptr_t sock_fd2uuid(int fd);

/* Take over `fd`, a connected non-blocking stream socket, as a new connection
 * without a protocol. Ownership of `fd` passes, also on failure, when it is
 * closed. -1: EBADF, `fd` is none; EMFILE, beyond the table's capacity. */
FACIL_PUBLIC FACIL_MUST_CHECK intptr_t sock_open(int fd);

/* The peer's address. -1 and EBADF, or what getpeername(2) says. */
FACIL_PUBLIC FACIL_MUST_CHECK int
sock_peer(intptr_t uuid, struct sockaddr_storage *addr, socklen_t *len);

/* ---- reading ----------------------------------------------------------- */

/* Read at most `len` bytes. > 0: bytes; 0: nothing now; -1: ESHUTDOWN, the peer
 * has ended its half (said again at each call); EBADF, no such connection; any
 * other: the connection is lost and on_close follows. Bytes pushed back by
 * sock_unread come first. Counts as a sign of life of the peer. */
FACIL_PUBLIC ssize_t sock_read(intptr_t uuid, void *buf, size_t len);

/* Push back bytes that were read too far: the next sock_read returns them first
 * and on_data is called in the next turn even if the socket is quiet. For
 * handing a connection on to another protocol. The bytes are copied. -1: EBADF;
 * ENOMEM; EEXIST: there are such bytes already. */
FACIL_PUBLIC FACIL_MUST_CHECK int sock_unread(intptr_t uuid, const void *buf,
                                              size_t len);

/* ---- the small write queue --------------------------------------------- */

struct sock_write_args {
  intptr_t uuid;
  const void *data; /* copied unless `move`, or a reference with `shared` */
  size_t len;
  bool move; /* data was malloc'ed and is sock's from here on, also on failure;
              * `dealloc` (default: free) ends it when sent or dropped */
  bool urgent; /* goes before all that has not begun to be sent, and behind
                * earlier urgent writes */
  void (*dealloc)(void *);
  facil_buf_s *shared; /* instead of data and len: one reference passes, also on
                        * failure; all of its `len` bytes are sent */
};

/* Queue bytes; they leave at the end of this turn. 0; a length of 0 is success.
 * -1, and nothing was queued: EBADF, no such connection; EPIPE, it is closing;
 * ENOBUFS, the queue is at its limit already; ENOMEM.
 * The limit is checked before the bytes are added, so a queue holds at most one
 * write more than its limit. */
#define sock_write2(...) sock_write2((struct sock_write_args){__VA_ARGS__})
FACIL_PUBLIC FACIL_MUST_CHECK int(sock_write2)(struct sock_write_args args);

/* sock_write2 with a copy of `data`. */
FACIL_PUBLIC FACIL_MUST_CHECK int sock_write(intptr_t uuid, const void *data,
                                             size_t len);

/* Bytes in the write queue, a kept rest of an offer included; 0 for none. */
FACIL_PUBLIC size_t sock_pending(intptr_t uuid);

/* Bytes that a write queue may hold, from now on, of each connection of this
 * process. Default 16 MiB. */
FACIL_PUBLIC void sock_set_queue_limit(size_t bytes);

/* TCP_NOTSENT_LOWAT for sockets accepted from now on. 0: the system's. */
FACIL_PUBLIC void sock_set_lowat(uint32_t bytes);

/* ---- offers ------------------------------------------------------------ */

#define SOCK_OFFER_MAX 16 /* pieces of an offer */

/* Called from on_ready only, at most once a call: offer bytes that lie
 * elsewhere, in `n` pieces, each inside the shared buffer `owner[i]`. They are
 * sent behind all that is queued. How many left comes back by the protocol's
 * on_sent (see facil.h) before the flush phase of this turn ends, once for each
 * offer, 0 if on_ready has written as well, unless the connection is lost
 * meanwhile. Until on_sent has returned no byte of them may move or be freed.
 * Nothing is copied and no reference is taken, but for the rest of a begun
 * frame, which may reach over several pieces. `iov` and `owner` are read before
 * this returns. 0; -1: EBADF; EPIPE, it is closing; EINVAL: not in on_ready,
 * the second offer of a call, no or too many pieces, a piece without an owner.
 */
FACIL_PUBLIC FACIL_MUST_CHECK int sock_offer(intptr_t uuid,
                                             const struct iovec *iov,
                                             facil_buf_s *const *owner, int n);

/* Ask for on_ready at the end of this turn, or as soon as the socket takes
 * bytes again. 0; -1 and EBADF. */
FACIL_PUBLIC int sock_want_ready(intptr_t uuid);

/* Whether the socket has refused bytes and not yet taken any since. */
FACIL_PUBLIC bool sock_is_blocked(intptr_t uuid);

/* Milliseconds since the socket last took a byte while some were waiting; 0 if
 * it is not blocked. */
FACIL_PUBLIC uint32_t sock_blocked_ms(intptr_t uuid);

/* ---- the end ----------------------------------------------------------- */

/* Close in order: what is queued is sent, then the sending half is shut down,
 * input is thrown away until the peer's end or 2 s (so that no RST destroys
 * what was sent), then on_close. No on_data, on_ready or ping comes after this.
 * -1 and EBADF. */
FACIL_PUBLIC int sock_close(intptr_t uuid);

/* The one way to lose a peer at once: logged and counted under `reason`, a
 * static string. The uuid is invalid when this returns; on_close follows at the
 * end of the turn. -1 and EBADF. */
FACIL_PUBLIC int sock_abort(intptr_t uuid, const char *reason);

#endif
