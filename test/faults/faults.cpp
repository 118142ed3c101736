#include "faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace {

enum class Layer { none, memory, operator_new, file, socket, thread };

constinit std::atomic<Layer> armed{Layer::none};
constinit std::atomic<long> left{0}, seen{0}, live{0};
constinit bool every_call = false, only_graft = false;
constinit char fault_name[32] = {};
thread_local int inside = 0;  // calls of this file's own

struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

enum class Owner : std::uintptr_t { standard_library, graft, other };

Owner owner_of(std::uintptr_t address) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || info.dli_fname == nullptr) return Owner::standard_library;
  const char* slash = std::strrchr(info.dli_fname, '/');
  const char* name = slash != nullptr ? slash + 1 : info.dli_fname;
  for (const char* part : {"libgraft_faults", "libstdc++", "libc.so", "libgcc"})
    if (std::strstr(name, part) != nullptr) return Owner::standard_library;
  return std::strncmp(name, "libgraft", 8) == 0 ? Owner::graft : Owner::other;
}

// By page of code: dladdr() searches all symbols of a library, and programs allocate millions of times. An entry is a
// page's address with its owner in the bits below.
Owner cached_owner_of(std::uintptr_t address) {
  constexpr std::uintptr_t kPageBits = 12, kInPage = (1 << kPageBits) - 1;
  constinit static std::atomic<std::uintptr_t> cache[1 << 14] = {};
  auto& entry = cache[(address >> kPageBits) % std::size(cache)];
  const std::uintptr_t found = entry.load(std::memory_order_relaxed);
  if ((found & ~kInPage) == (address & ~kInPage)) return static_cast<Owner>(found & kInPage);
  const Owner owner = owner_of(address);
  entry.store((address & ~kInPage) | static_cast<std::uintptr_t>(owner), std::memory_order_relaxed);
  return owner;
}

// Whether the call comes from a library of graft's, maybe by way of the standard library. The binding is none:
// nanobind, which is in it, ends the process when it has no memory.
bool of_graft() {
  const Inside guard;
  Owner owner = Owner::standard_library;
  _Unwind_Backtrace(
      [](_Unwind_Context* frame, void* to) {
        Owner& found = *static_cast<Owner*>(to);
        found = cached_owner_of(_Unwind_GetIP(frame));
        return found == Owner::standard_library ? _URC_NO_REASON : _URC_NORMAL_STOP;
      },
      &owner);
  return owner == Owner::graft;
}

bool fails(Layer layer) {
  if (armed.load(std::memory_order_relaxed) != layer || inside > 0) return false;
  if (only_graft && !of_graft()) return false;
  seen.fetch_add(1, std::memory_order_relaxed);
  const long n = left.fetch_sub(1, std::memory_order_relaxed);
  return n == 1 || (every_call && n < 1);
}

bool named(const char* name) { return std::strcmp(fault_name, name) == 0; }

int error_number() {
  if (named("ENOSPC")) return ENOSPC;
  if (named("EINTR")) return EINTR;
  if (named("EROFS")) return EROFS;
  if (named("EACCES")) return EACCES;
  if (named("EMFILE")) return EMFILE;
  if (named("ENOMEM")) return ENOMEM;
  return EIO;
}

bool file_fails(Layer layer = Layer::file) {
  if (named("short") || !fails(layer)) return false;
  errno = error_number();
  return true;
}
// Reads and writes that do less than they were asked for.
bool falls_short(Layer layer = Layer::file) { return named("short") && fails(layer); }

void* counted(void* block) {
  if (block != nullptr) live.fetch_add(1, std::memory_order_relaxed);
  return block;
}

[[noreturn]] void throw_fault() {
  const Inside guard;
  if (named("length_error")) throw std::length_error("injected");
  if (named("out_of_range")) throw std::out_of_range("injected");
  if (named("logic_error")) throw std::logic_error("injected");
  if (named("system_error")) throw std::system_error(EAGAIN, std::generic_category(), "injected");
  if (named("json")) throw nlohmann::json::out_of_range::create(401, "injected", nullptr);
  if (named("number")) throw 7;
  throw std::bad_alloc();
}

void* new_block(std::size_t bytes, std::size_t alignment) {
  if (fails(Layer::operator_new)) throw_fault();
  void* block = alignment <= alignof(std::max_align_t) ? std::malloc(bytes) : std::aligned_alloc(alignment, bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

template <typename Function>
Function* next(const char* name, Function*) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define NEXT(function) static auto* const real = next(#function, &function)

}  // namespace

extern "C" {

void graft_faults_arm(const char* layer, long n, const char* fault, int every) {
  std::strncpy(fault_name, fault, sizeof(fault_name) - 1);
  every_call = every != 0;
  const char* const of_graft_alone = std::getenv("GRAFT_FAULTS_OF_GRAFT");
  only_graft = of_graft_alone != nullptr && std::strcmp(of_graft_alone, layer) == 0;
  seen = 0;
  left = n;
  armed = std::strcmp(layer, "memory") == 0   ? Layer::memory
          : std::strcmp(layer, "new") == 0    ? Layer::operator_new
          : std::strcmp(layer, "file") == 0   ? Layer::file
          : std::strcmp(layer, "socket") == 0 ? Layer::socket
          : std::strcmp(layer, "thread") == 0 ? Layer::thread
                                              : Layer::none;
}

long graft_faults_disarm() {
  armed = Layer::none;
  return seen;
}

void graft_faults_pause(int paused) { inside += paused != 0 ? 1 : -1; }

long graft_faults_live_blocks() { return live; }

// --- memory ---

void* malloc(std::size_t bytes) {
  if (fails(Layer::memory)) return errno = ENOMEM, nullptr;
  return counted(__libc_malloc(bytes));
}
void* calloc(std::size_t count, std::size_t bytes) {
  if (fails(Layer::memory)) return errno = ENOMEM, nullptr;
  return counted(__libc_calloc(count, bytes));
}
void* realloc(void* block, std::size_t bytes) {
  if (fails(Layer::memory)) return errno = ENOMEM, nullptr;
  void* const again = __libc_realloc(block, bytes);
  if (block == nullptr) counted(again);
  if (block != nullptr && bytes == 0) live.fetch_sub(1, std::memory_order_relaxed);
  return again;
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  if (fails(Layer::memory)) return errno = ENOMEM, nullptr;
  return counted(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  void* const made = memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *block = made;
  return 0;
}
void free(void* block) {
  if (block != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  __libc_free(block);
}

// --- threads ---

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  NEXT(pthread_create);
  return fails(Layer::thread) ? EAGAIN : real(thread, attributes, run, argument);
}

// --- files ---

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, int));
  va_end(rest);
  NEXT(open);
  return file_fails() ? -1 : real(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, int));
  va_end(rest);
  NEXT(open64);
  return file_fails() ? -1 : real(path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
  NEXT(fopen);
  return file_fails() ? nullptr : real(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  NEXT(fopen64);
  return file_fails() ? nullptr : real(path, mode);
}
std::size_t fread(void* to, std::size_t size, std::size_t count, FILE* file) {
  NEXT(fread);
  if (file_fails()) return 0;
  return real(to, size, falls_short() ? count / 2 : count, file);
}
std::size_t fwrite(const void* from, std::size_t size, std::size_t count, FILE* file) {
  NEXT(fwrite);
  if (file == stderr || file == stdout) return real(from, size, count, file);
  return file_fails() ? 0 : real(from, size, count, file);
}
ssize_t read(int file, void* to, std::size_t bytes) {
  NEXT(read);
  if (file_fails()) return -1;
  return real(file, to, falls_short() ? (bytes + 1) / 2 : bytes);
}
ssize_t pread(int file, void* to, std::size_t bytes, off_t at) {
  NEXT(pread);
  if (file_fails()) return -1;
  return real(file, to, falls_short() ? (bytes + 1) / 2 : bytes, at);
}
ssize_t pread64(int file, void* to, std::size_t bytes, off64_t at) {
  NEXT(pread64);
  if (file_fails()) return -1;
  return real(file, to, falls_short() ? (bytes + 1) / 2 : bytes, at);
}
ssize_t write(int file, const void* from, std::size_t bytes) {
  NEXT(write);
  if (file <= 2) return real(file, from, bytes);
  if (file_fails()) return -1;
  return real(file, from, falls_short() ? (bytes + 1) / 2 : bytes);
}
ssize_t pwrite(int file, const void* from, std::size_t bytes, off_t at) {
  NEXT(pwrite);
  if (file_fails()) return -1;
  return real(file, from, falls_short() ? (bytes + 1) / 2 : bytes, at);
}
ssize_t pwrite64(int file, const void* from, std::size_t bytes, off64_t at) {
  NEXT(pwrite64);
  if (file_fails()) return -1;
  return real(file, from, falls_short() ? (bytes + 1) / 2 : bytes, at);
}
void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  NEXT(mmap);
  if (file >= 0 && file_fails()) return MAP_FAILED;
  return real(at, bytes, protection, flags, file, offset);
}
void* mmap64(void* at, std::size_t bytes, int protection, int flags, int file, off64_t offset) {
  NEXT(mmap64);
  if (file >= 0 && file_fails()) return MAP_FAILED;
  return real(at, bytes, protection, flags, file, offset);
}
int fstat(int file, struct stat* out) {
  NEXT(fstat);
  return file_fails() ? -1 : real(file, out);
}
int fstat64(int file, struct stat64* out) {
  NEXT(fstat64);
  return file_fails() ? -1 : real(file, out);
}
int flock(int file, int operation) {
  NEXT(flock);
  return file_fails() ? -1 : real(file, operation);
}
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  return file_fails() ? -1 : real(path, mode);
}
int fsync(int file) {
  NEXT(fsync);
  return file_fails() ? -1 : real(file);
}
int ftruncate(int file, off_t bytes) {
  NEXT(ftruncate);
  return file_fails() ? -1 : real(file, bytes);
}
int ftruncate64(int file, off64_t bytes) {
  NEXT(ftruncate64);
  return file_fails() ? -1 : real(file, bytes);
}
int rename(const char* from, const char* to) {
  NEXT(rename);
  return file_fails() ? -1 : real(from, to);
}

// --- sockets ---

ssize_t recvmsg(int socket, struct msghdr* message, int flags) {
  NEXT(recvmsg);
  return file_fails(Layer::socket) ? -1 : real(socket, message, flags);
}
ssize_t sendmsg(int socket, const struct msghdr* message, int flags) {
  NEXT(sendmsg);
  return file_fails(Layer::socket) ? -1 : real(socket, message, flags);
}
ssize_t recv(int socket, void* to, std::size_t bytes, int flags) {
  NEXT(recv);
  if (file_fails(Layer::socket)) return -1;
  return real(socket, to, falls_short(Layer::socket) ? (bytes + 1) / 2 : bytes, flags);
}
ssize_t send(int socket, const void* from, std::size_t bytes, int flags) {
  NEXT(send);
  if (file_fails(Layer::socket)) return -1;
  return real(socket, from, falls_short(Layer::socket) ? (bytes + 1) / 2 : bytes, flags);
}
int accept(int socket, struct sockaddr* address, socklen_t* bytes) {
  NEXT(accept);
  return file_fails(Layer::socket) ? -1 : real(socket, address, bytes);
}
int accept4(int socket, struct sockaddr* address, socklen_t* bytes, int flags) {
  NEXT(accept4);
  return file_fails(Layer::socket) ? -1 : real(socket, address, bytes, flags);
}

// --- programs ---

namespace {
int (*program)(int, char**, char**) = nullptr;
void arm(const char* text) {
  char layer[32] = {}, fault[32] = {};
  long n = 0;
  int every = 0;
  std::sscanf(text, "%31s %ld %31s %d", layer, &n, fault, &every);
  graft_faults_arm(layer, n, fault, every);
}

// Nothing here allocates: any thread may be interrupted within malloc.
char control_file[256] = {};
void on_control(int) {
  const Inside guard;
  const int error = errno;
  const long calls = graft_faults_disarm();
  char text[128] = {};
  const int file = ::open(control_file, O_RDWR);
  if (file >= 0 && ::pread(file, text, sizeof(text) - 1, 0) > 0 && std::strncmp(text, "none", 4) != 0) arm(text);
  if (file >= 0) {
    const int count = std::snprintf(text, sizeof(text), "seen %ld %ld\n", calls, live.load());
    if (::ftruncate(file, 0) == 0 && ::pwrite(file, text, static_cast<std::size_t>(count), 0) < 0) ::abort();
    ::close(file);
  }
  errno = error;
}

int armed_program(int count, char** arguments, char** environment) {
  if (const char* text = std::getenv("GRAFT_FAULTS")) {
    arm(text);
    unsetenv("GRAFT_FAULTS");
  }
  if (const char* path = std::getenv("GRAFT_FAULTS_CONTROL")) {
    std::strncpy(control_file, path, sizeof(control_file) - 1);
    unsetenv("GRAFT_FAULTS_CONTROL");
    struct sigaction action = {};
    action.sa_handler = on_control;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
  }
  return program(count, arguments, environment);
}
}  // namespace

int __libc_start_main(int (*main)(int, char**, char**), int count, char** arguments, void (*init)(), void (*fini)(),
                      void (*linker_fini)(), void* stack_end) {
  NEXT(__libc_start_main);
  program = main;
  return real(armed_program, count, arguments, init, fini, linker_fini, stack_end);
}

}  // extern "C"

// --- operator new ---

void* operator new(std::size_t bytes) { return new_block(bytes, 0); }
void* operator new[](std::size_t bytes) { return new_block(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return new_block(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return new_block(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
