// What /proc tells of a server: its processes, their descriptors, memory and
// CPU time, and which of them holds which connection.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { execFileSync } from 'node:child_process';

// { pid, state, ppid, pgrp, ticks } of a living process, or null.
export function stat(pid) {
  let text;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return null;
  }
  const field = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return {
    pid: Number(pid), state: field[0], ppid: Number(field[1]), pgrp: Number(field[2]),
    ticks: Number(field[11]) + Number(field[12]),
  };
}

const all = () => readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  .map(stat).filter((entry) => entry !== null && entry.state !== 'Z');

export const children = (pid) => all().filter((p) => p.ppid === pid).map((p) => p.pid)
  .sort((a, b) => a - b);

export const ofGroup = (pgrp) => all().filter((p) => p.pgrp === pgrp).map((p) => p.pid);

export const alive = (pid) => {
  const entry = stat(pid);
  return entry !== null && entry.state !== 'Z';
};

// CPU time in ms.
export const cpuMs = (pids) => pids.reduce((sum, pid) => sum + (stat(pid)?.ticks ?? 0) * 10, 0);

export const fds = (pids) => pids.reduce((sum, pid) => {
  try {
    return sum + readdirSync(`/proc/${pid}/fd`).length;
  } catch {
    return sum;
  }
}, 0);

// Bytes of private memory: what is shared between the workers (the ring) is
// not a connection's cost.
export function ownBytes(pids) {
  return pids.reduce((sum, pid) => {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1');
    return sum + Number(/^Anonymous:\s+(\d+) kB/m.exec(text)[1]) * 1024;
  }, 0);
}

function table(name) {
  try {
    return readFileSync(`/proc/net/${name}`, 'latin1').trim().split('\n').slice(1);
  } catch {
    return [];
  }
}

// Map of a client's port → pid that holds the server's end.
export function placement(pids, serverPort) {
  const inodes = new Map();
  for (const row of [...table('tcp'), ...table('tcp6')]) {
    const field = row.trim().split(/\s+/);
    const port = (address) => parseInt(address.split(':')[1], 16);
    if (port(field[1]) === serverPort) inodes.set(field[9], port(field[2]));
  }
  const held = new Map();
  for (const pid of pids) {
    let names = [];
    try {
      names = readdirSync(`/proc/${pid}/fd`);
    } catch { /* it is gone */ }
    for (const name of names) {
      let link = '';
      try {
        link = readlinkSync(`/proc/${pid}/fd/${name}`);
      } catch { /* closed meanwhile */ }
      const inode = /^socket:\[(\d+)\]$/.exec(link)?.[1];
      if (inode && inodes.get(inode)) held.set(inodes.get(inode), pid);
    }
  }
  return held;
}

// Kernel memory that the server's ends of connections hold for sending, by the
// client's port. Where there is no `ss`, twice the bytes in the send queue.
export function sendMemory(serverPort) {
  const memory = new Map();
  try {
    const text = execFileSync('ss', ['-Htnmo', 'state', 'established', `sport = :${serverPort}`],
      { encoding: 'latin1', maxBuffer: 1 << 26 });
    let port = null;
    for (const line of text.split('\n')) {
      const ends = /:\d+\s+\S+:(\d+)\b/.exec(line);
      if (ends) port = Number(ends[1]);
      const skmem = /skmem:\(r(\d+),rb\d+,t(\d+),tb\d+,f(\d+),w(\d+)/.exec(line);
      if (skmem && port !== null) {
        memory.set(port, Number(skmem[1]) + Math.max(Number(skmem[2]), Number(skmem[4])));
      }
    }
    if (memory.size > 0) return memory;
  } catch { /* no ss here */ }
  for (const row of [...table('tcp'), ...table('tcp6')]) {
    const field = row.trim().split(/\s+/);
    if (parseInt(field[1].split(':')[1], 16) !== serverPort) continue;
    memory.set(parseInt(field[2].split(':')[1], 16), 2 * parseInt(field[4].split(':')[0], 16));
  }
  return memory;
}
