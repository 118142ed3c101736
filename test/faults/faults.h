#pragma once

// Faults of the process's own C library and operating system, made by the tests: the n-th call of a layer fails, in any
// thread. libgraft_faults.so puts itself between graft and the C library where it is linked first or preloaded.
//
//   graft_faults_arm("memory", 7, "", 0);  // the seventh allocation from here on fails
//   ...
//   long calls = graft_faults_disarm();    // calls of the layer meanwhile: below 7, nothing failed
//
// Layers and their faults:
//   memory  every allocation (malloc and operator new); fails as the C library says
//   new     operator new alone; throws what `fault` names: "bad_alloc", "length_error", "out_of_range", "system_error",
//           "logic_error", "json", "number"
//   file    open, read, write, mmap, fsync, flock, mkdir, rename and the like; fault: the name of an errno, or "short"
//           for reads and writes of half the bytes and truncated files
//   thread  pthread_create fails with EAGAIN
// `every`: all calls from the n-th on fail, as on a full disk.
//
// In the environment of a program: GRAFT_FAULTS="layer n fault every" arms when main() begins.
// GRAFT_FAULTS_CONTROL=FILE: on SIGUSR1 the file is read: "layer n fault every" arms, "none" does not; what was armed
// is no more. Then the file holds "seen CALLS BLOCKS": of the layer since it was armed, and in use.
// GRAFT_FAULTS_OF_GRAFT="layer": in this layer calls of graft's own libraries alone count, by the stack.
extern "C" {
void graft_faults_arm(const char* layer, long n, const char* fault, int every);
long graft_faults_disarm();
// Calls of this thread are neither counted nor failed until the same with 0.
void graft_faults_pause(int paused);
// Memory in use: blocks that were allocated and not freed.
long graft_faults_live_blocks();
}
