#pragma once

// Test only: a ggml device with memory of its own, and with streams: what is queued on a backend runs on that backend's
// worker thread, by ggml's CPU backend; events are real. A test chooses the order in which streams run, stops them in
// graphs, makes graphs fail, limits the memory, and loses the device.

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace graft::test {

class StreamDevice {
 public:
  // What a stream did, in the order in which streams did it.
  struct Entry {
    char what;   // u: upload, d: download, g: graph, r: record, w: wait
    int stream;  // the number of the backend, of those started since reset()
    bool operator==(const Entry&) const = default;
  };

  // Adds the device to ggml's, under this name. There is no way to remove it.
  static StreamDevice& add(const std::string& name, bool has_events) {
    auto* device = new StreamDevice(name, has_events);
    ggml_backend_register(&device->registry_);
    return *device;
  }

  // Everything below, and the log, as at the beginning.
  void reset() {
    const std::lock_guard lock(mutex_);
    random_.reset();
    on_graph = nullptr;
    on_queue = nullptr;
    ignored_wait = failing_graph = -1;
    lost_at.clear();
    lost_after = 0;
    lost_ = false;
    most_memory = std::size_t{1} << 30;
    waits_ = graphs_ = started_ = 0;
    log_.clear();
  }
  // Nothing runs until a thread waits for a stream; then one stream at a time, picked at random of those that can, does
  // one thing.
  void run_in_random_order(unsigned seed) {
    const std::lock_guard lock(mutex_);
    random_.emplace(seed);
  }
  // Of those queued since reset(): the wait that does not wait, the graph that is refused with an error. None: -1.
  int ignored_wait = -1, failing_graph = -1;
  // Loses the device at this kind of call ("graph", "upload", "download", "synchronize", "record", "wait"), once so
  // many of them have passed: it and all later ones throw, as ggml's backends do when their driver reports that, and
  // nothing that is queued runs.
  std::string lost_at;
  int lost_after = 0;
  std::size_t most_memory = std::size_t{1} << 30;  // the largest buffer that can be had
  std::function<void(int stream)> on_graph;        // before a graph computes, on the stream's thread
  std::function<void()> on_queue;                  // while a graph is queued, on the caller's thread

  std::vector<Entry> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  int waits() const { return waits_; }
  int graphs() const { return graphs_; }

 private:
  struct Event {
    std::uint64_t recorded = 0, reached = 0;
  };
  struct Action {
    char what;
    std::function<void()> run;
    Event* event = nullptr;
    std::uint64_t ticket = 0;  // of a record: which one; of a wait: that which it waits for
  };
  struct Stream {
    StreamDevice& device;
    int number;
    ggml_backend_t cpu;
    std::deque<Action> queue = {};  // the first one may be running
    bool running = false, ends = false;
    std::thread worker = {};

    bool can_run() const {
      if (queue.empty() || running) return false;
      const Action& next = queue.front();
      return next.what != 'w' || next.event->reached >= next.ticket;
    }
  };

  StreamDevice(const std::string& name, bool has_events) : name_(name), has_events_(has_events) {
    cpu_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    registry_ = {
        GGML_BACKEND_API_VERSION,
        {[](ggml_backend_reg_t r) { return of(r).name_.c_str(); }, [](ggml_backend_reg_t) { return std::size_t{1}; },
         [](ggml_backend_reg_t r, std::size_t) { return &of(r).device_; },
         [](ggml_backend_reg_t, const char*) -> void* { return nullptr; }},
        this};
    device_.reg = &registry_;
    device_.context = this;
    device_.iface.get_name = [](ggml_backend_dev_t d) { return of(d).name_.c_str(); };
    device_.iface.get_description = [](ggml_backend_dev_t) { return "streams on threads, a test device"; };
    device_.iface.get_memory = [](ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
      *free = *total = std::size_t{1} << 30;
    };
    device_.iface.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    device_.iface.get_props = [](ggml_backend_dev_t d, ggml_backend_dev_props* props) {
      props->name = of(d).name_.c_str();
      props->type = GGML_BACKEND_DEVICE_TYPE_GPU;
      props->caps.async = true;
      props->caps.events = of(d).has_events_;
    };
    device_.iface.init_backend = [](ggml_backend_dev_t d, const char*) { return of(d).start(); };
    device_.iface.get_buffer_type = [](ggml_backend_dev_t d) { return &of(d).memory_; };
    device_.iface.supports_op = [](ggml_backend_dev_t d, const ggml_tensor* op) {
      return ggml_backend_dev_supports_op(of(d).cpu_, op);
    };
    device_.iface.supports_buft = [](ggml_backend_dev_t d, ggml_backend_buffer_type_t type) {
      return type == &of(d).memory_;
    };
    if (has_events) {
      device_.iface.event_new = [](ggml_backend_dev_t d) { return new ggml_backend_event{d, new Event}; };
      device_.iface.event_free = [](ggml_backend_dev_t, ggml_backend_event_t event) {
        delete static_cast<Event*>(event->context);
        delete event;
      };
    }
    memory_.device = &device_;
    memory_.iface.get_name = [](ggml_backend_buffer_type_t type) { return of(type->device).name_.c_str(); };
    memory_.iface.get_alignment = [](ggml_backend_buffer_type_t) { return std::size_t{64}; };
    memory_.iface.alloc_buffer = allocate;
  }

  static StreamDevice& of(ggml_backend_reg_t registry) { return *static_cast<StreamDevice*>(registry->context); }
  static StreamDevice& of(ggml_backend_dev_t device) { return *static_cast<StreamDevice*>(device->context); }
  static Stream& of(ggml_backend_t backend) { return *static_cast<Stream*>(backend->context); }

  // As NaN, so that what was not written shows.
  static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, std::size_t bytes) {
    if (bytes > of(type->device).most_memory) return nullptr;
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xff, bytes);
    ggml_backend_buffer_i iface{};
    iface.free_buffer = [](ggml_backend_buffer_t buffer) { std::free(buffer->context); };
    iface.get_base = [](ggml_backend_buffer_t buffer) { return buffer->context; };
    iface.set_tensor = [](ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, std::size_t at, std::size_t n) {
      std::memcpy(static_cast<char*>(tensor->data) + at, data, n);
    };
    iface.get_tensor = [](ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, std::size_t at, std::size_t n) {
      std::memcpy(data, static_cast<const char*>(tensor->data) + at, n);
    };
    iface.clear = [](ggml_backend_buffer_t buffer, std::uint8_t value) {
      std::memset(buffer->context, value, buffer->size);
    };
    return ggml_backend_buffer_init(type, iface, memory, bytes);
  }

  ggml_backend_t start() {
    static ggml_guid guid = {'s', 't', 'r', 'e', 'a', 'm', 's'};
    ggml_backend_i iface{};
    iface.get_name = [](ggml_backend_t backend) { return of(backend).device.name_.c_str(); };
    iface.free = end;
    iface.set_tensor_async = [](ggml_backend_t backend, ggml_tensor* tensor, const void* data, std::size_t at,
                                std::size_t n) {
      of(backend).device.pass("upload");
      of(backend).device.queue(
          of(backend), {'u', [to = static_cast<char*>(tensor->data) + at, data, n] { std::memcpy(to, data, n); }});
    };
    iface.get_tensor_async = [](ggml_backend_t backend, const ggml_tensor* tensor, void* data, std::size_t at,
                                std::size_t n) {
      of(backend).device.pass("download");
      of(backend).device.queue(of(backend), {'d', [from = static_cast<const char*>(tensor->data) + at, data, n] {
                                               std::memcpy(data, from, n);
                                             }});
    };
    iface.synchronize = [](ggml_backend_t backend) {
      of(backend).device.pass("synchronize");
      of(backend).device.synchronize(of(backend));
    };
    iface.graph_compute = [](ggml_backend_t backend, ggml_cgraph* graph) {
      of(backend).device.pass("graph");
      return of(backend).device.queue_graph(of(backend), graph);
    };
    if (has_events_) {
      iface.event_record = [](ggml_backend_t backend, ggml_backend_event_t event) {
        StreamDevice& device = of(backend).device;
        device.pass("record");
        auto* e = static_cast<Event*>(event->context);
        std::unique_lock lock(device.mutex_);
        const std::uint64_t ticket = ++e->recorded;
        lock.unlock();
        device.queue(of(backend), {'r', [] {}, e, ticket});
      };
      iface.event_wait = [](ggml_backend_t backend, ggml_backend_event_t event) {
        StreamDevice& device = of(backend).device;
        device.pass("wait");
        auto* e = static_cast<Event*>(event->context);
        std::unique_lock lock(device.mutex_);
        const std::uint64_t ticket = device.waits_++ == device.ignored_wait ? 0 : e->recorded;
        lock.unlock();
        device.queue(of(backend), {'w', [] {}, e, ticket});
      };
    }
    auto* stream = new Stream{*this, 0, ggml_backend_dev_init(cpu_, nullptr)};
    const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu_), "ggml_backend_set_n_threads"));
    set_threads(stream->cpu, 1);
    const std::lock_guard lock(mutex_);
    stream->number = started_++;
    streams_.push_back(stream);
    stream->worker = std::thread([this, stream] { work(*stream); });
    return new ggml_backend{&guid, iface, &device_, stream};
  }

  static void end(ggml_backend_t backend) {
    Stream* stream = &of(backend);
    StreamDevice& device = stream->device;
    device.synchronize(*stream);
    std::unique_lock lock(device.mutex_);
    stream->ends = true;
    std::erase(device.streams_, stream);
    lock.unlock();
    device.changed_.notify_all();
    stream->worker.join();
    ggml_backend_free(stream->cpu);
    delete stream;
    delete backend;
  }

  void pass(const char* what) {
    std::unique_lock lock(mutex_);
    if (!lost_ && (lost_at != what || lost_after-- > 0)) return;
    lost_ = true;
    changed_.wait(lock, [&] { return std::ranges::none_of(streams_, [](const Stream* s) { return s->running; }); });
    for (Stream* stream : streams_) stream->queue.clear();
    throw std::runtime_error("the driver reports that the device is lost");
  }

  void queue(Stream& stream, Action action) {
    const std::lock_guard lock(mutex_);
    stream.queue.push_back(std::move(action));
    changed_.notify_all();
  }

  ggml_status queue_graph(Stream& stream, ggml_cgraph* graph) {
    if (on_queue) on_queue();
    std::unique_lock lock(mutex_);
    const bool fails = graphs_++ == failing_graph;
    lock.unlock();
    if (fails) return GGML_STATUS_FAILED;
    queue(stream, {'g', [this, &stream, graph] {
                     if (on_graph) on_graph(stream.number);
                     if (ggml_backend_graph_compute(stream.cpu, graph) != GGML_STATUS_SUCCESS) std::abort();
                   }});
    return GGML_STATUS_SUCCESS;
  }

  void work(Stream& stream) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stream.ends || (stream.can_run() && (!random_ || turn_ == &stream)); });
      if (stream.ends) return;
      Action& action = stream.queue.front();  // a deque: stays where it is
      stream.running = true;
      lock.unlock();
      action.run();
      lock.lock();
      if (action.what == 'r') action.event->reached = std::max(action.event->reached, action.ticket);
      log_.push_back({action.what, stream.number});
      stream.queue.pop_front();
      stream.running = false;
      turn_ = nullptr;
      changed_.notify_all();
    }
  }

  void synchronize(Stream& stream) {
    std::unique_lock lock(mutex_);
    while (!stream.queue.empty()) {
      if (random_ && turn_ == nullptr) {
        std::vector<Stream*> able;
        for (Stream* other : streams_)
          if (other->can_run()) able.push_back(other);
        if (able.empty()) {
          std::fprintf(stderr, "%s: each stream waits for an event that nothing records\n", name_.c_str());
          std::abort();
        }
        turn_ = able[(*random_)() % able.size()];
        changed_.notify_all();
      }
      changed_.wait(lock, [&] { return stream.queue.empty() || (random_ && turn_ == nullptr); });
    }
  }

  const std::string name_;
  const bool has_events_;
  ggml_backend_dev_t cpu_;
  ggml_backend_reg registry_{};
  ggml_backend_device device_{};
  ggml_backend_buffer_type memory_{};

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<Stream*> streams_;
  std::optional<std::mt19937> random_;
  Stream* turn_ = nullptr;
  int waits_ = 0, graphs_ = 0, started_ = 0;
  bool lost_ = false;
  std::vector<Entry> log_;
};

}  // namespace graft::test
