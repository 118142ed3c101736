#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/sha256.h"
#include "stage/beat.h"
#include "stage/channel.h"
#include "stage/handshake.h"
#include "stage/secret.h"
#include "stage/step.h"
#include "stage/turns.h"

namespace graft::stage {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> meta_of(std::initializer_list<std::int64_t> numbers) {
  const auto bytes = std::as_bytes(std::span(numbers.begin(), numbers.size()));
  return {bytes.begin(), bytes.end()};
}

constexpr Digest kZeros{};

// Two ends of a connection of this process.
struct Pair {
  std::unique_ptr<Channel> stage, driver;

  explicit Pair(bool local) {
    int fds[2] = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    stage = std::make_unique<Channel>(Socket(Descriptor(fds[0]), "driver", local));
    driver = std::make_unique<Channel>(Socket(Descriptor(fds[1]), "stage", local));
  }
};

TEST(StageSecret, HmacIsThatOfRfc4231) {
  const auto hmac = [](std::string_view key, std::string_view text) {
    return hex_of(hmac_sha256(key, {bytes_of(text.substr(0, 5)), bytes_of(text.substr(5))}));
  };
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(StageAddress, FormsAndRefusals) {
  for (const char* good : {"host:80", "127.0.0.1:0", "[::1]:7001", "unix:/tmp/a b"})
    EXPECT_EQ(Address::parse(good).str(), good);
  for (const char* bad : {"", "host", "host:", ":80", "host:port", "host:65536", "::1:80", "unix:", "host:123456"})
    EXPECT_THROW(Address::parse(bad), InvalidArgument) << bad;
}

TEST(StageChannel, PayloadsArriveThroughSocketsAndSharedMemory) {
  for (const bool local : {false, true}) {
    Pair pair(local);
    std::thread stage([&] { welcome(*pair.stage, "the same", Wait::seconds(5)); });
    introduce(*pair.driver, "the same", Wait::seconds(5));
    stage.join();
    std::mt19937 random(1);
    for (const std::size_t size : {1, 64, 4096, 3'000'000}) {
      std::vector<std::byte> sent(size);
      for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
      const auto room = pair.driver->outgoing(size);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(room.data()) % 64, 0U);
      std::ranges::copy(sent, room.begin());
      std::thread sender([&] { pair.driver->send(Kind::run, bytes_of("numbers"), size, Wait::seconds(5)); });
      const auto message = pair.stage->receive(kProven, Wait::seconds(5));
      sender.join();
      EXPECT_EQ(message.kind, Kind::run);
      EXPECT_EQ(message.meta.size(), 7U);
      EXPECT_TRUE(std::ranges::equal(message.payload, sent));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(message.payload.data()) % 64, 0U);
      // And back through the other half.
      pair.stage->outgoing(size)[0] = std::byte{7};
      std::thread back([&] { pair.stage->send(Kind::done, {}, size, Wait::seconds(5)); });
      EXPECT_EQ(pair.driver->receive(kProven, Wait::seconds(5)).payload[0], std::byte{7});
      back.join();
    }
    EXPECT_THROW(pair.driver->outgoing(kProven.payload + 1), InvalidArgument);
  }
}

TEST(StageChannel, OtherSecretsAreRefusedOnBothSides) {
  for (const bool local : {false, true}) {
    Pair pair(local);
    std::thread stage([&] {
      EXPECT_THROW(welcome(*pair.stage, "a secret", Wait::seconds(5)), Refused);
      pair.stage.reset();
    });
    EXPECT_ANY_THROW(introduce(*pair.driver, "another", Wait::seconds(5)));
    stage.join();
  }
  // A stage that accepts everybody and knows nothing.
  Pair pair(false);
  std::thread stage([&] {
    pair.stage->send(Kind::challenge, std::as_bytes(std::span(kZeros)), 0, Wait::seconds(5));
    pair.stage->receive(kBeforeProof, Wait::seconds(5));
    pair.stage->send(Kind::welcome, std::as_bytes(std::span(kZeros)), 0, Wait::seconds(5));
  });
  EXPECT_THROW(introduce(*pair.driver, "a secret", Wait::seconds(5)), Refused);
  stage.join();
  // One that sends the driver's own proof back.
  Pair mirror(false);
  std::thread thief([&] {
    mirror.stage->send(Kind::challenge, std::as_bytes(std::span(kZeros)), 0, Wait::seconds(5));
    const auto proof = mirror.stage->receive(kBeforeProof, Wait::seconds(5));
    mirror.stage->send(Kind::welcome, std::span(proof.meta).last(sizeof(Digest)), 0, Wait::seconds(5));
  });
  EXPECT_THROW(introduce(*mirror.driver, "a secret", Wait::seconds(5)), Refused);
  thief.join();
}

TEST(StageChannel, LocalWithoutSharedMemoryIsRefused) {
  Pair pair(true);
  pair.stage->send(Kind::challenge, {}, 0, Wait::seconds(5));
  EXPECT_THROW(introduce(*pair.driver, "", Wait::seconds(5)), Refused);
}

TEST(StageChannel, WaitsEnd) {
  Pair pair(false);
  EXPECT_THROW(pair.driver->receive(kProven, Wait::seconds(0.01)), Cancelled);
  const CancelToken cancel;
  cancel.cancel();
  EXPECT_THROW(pair.driver->socket().await_bytes({Clock::time_point::max(), &cancel}), Cancelled);
  pair.stage.reset();
  EXPECT_THROW(pair.driver->receive(kProven, {}), Unavailable);
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) pair.driver->send(Kind::run, {}, 0, {});
      },
      Unavailable);
}

TEST(StageHeader, AnyBytesAreReadOrRefused) {
  std::mt19937 random(3);
  std::array<std::byte, Header::kBytes> good{};
  Header{Kind::run, 40, 64}.write(good);
  EXPECT_EQ(Header::read(good, kProven).payload, 64U);
  EXPECT_THROW(Header::read(good, kBeforeProof), Refused);
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = good;
    for (int k = 0; k < 1 + i % 3; ++k) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    try {
      const Header header = Header::read(bytes, kProven);
      EXPECT_LE(header.meta, kProven.meta);
      EXPECT_LE(header.payload, kProven.payload);
    } catch (const Refused&) {
    }
  }
}

TEST(StageBeat, SaysThatTheStageIsAtWorkUntilItAnswers) {
  Pair pair(false);
  Beat beat(*pair.stage);
  for (int run = 0; run < 2; ++run) {
    beat.start();
    for (int i = 0; i < 2; ++i) {
      const auto message = pair.driver->receive(kProven, Wait::seconds(30));
      EXPECT_EQ(message.kind, Kind::working);
      EXPECT_TRUE(message.meta.empty() && message.payload.empty());
    }
    beat.stop();
    pair.stage->send(Kind::done, {}, 0, Wait::seconds(30));
    Kind kind = Kind::working;
    while (kind == Kind::working) kind = pair.driver->receive(kProven, Wait::seconds(30)).kind;
    EXPECT_EQ(kind, Kind::done);
    EXPECT_THROW(pair.driver->receive(kProven, Wait::seconds(1.5 * 0.5)), Cancelled);  // it says nothing at rest
  }
  beat.start();
  pair.driver.reset();  // the driver has gone: nothing is thrown
}

TEST(StageStep, NumbersSurviveAndAnyOthersAreReadOrRefused) {
  const std::int64_t sequences[] = {3, 0}, ids[] = {1, 2, 3, 4, 5, 6};
  const Step step{3, 1, sequences, ids, ids, ids, {{DType::f32, {2, 3, 8}}, {DType::i64, {}}}};
  const std::vector<std::int64_t> good = step.numbers();
  const Step back = Step::of(std::as_bytes(std::span(good)));
  EXPECT_EQ(back.numbers(), good);
  EXPECT_EQ(payload_bytes(back.tensors), 192U + 64U);
  const Result result{{4, 1}, step.tensors};
  const std::vector<std::int64_t> answer = result.numbers();
  EXPECT_EQ(Result::of(std::as_bytes(std::span(answer))).numbers(), answer);
  std::mt19937_64 random(4);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::int64_t> numbers = i % 2 == 0 ? good : answer;
    for (int k = 0; k < 1 + i % 3; ++k) {
      std::int64_t& one = numbers[random() % numbers.size()];
      one = i % 5 == 0 ? static_cast<std::int64_t>(random()) : one + static_cast<std::int64_t>(random() % 7) - 3;
    }
    if (i % 4 == 0) numbers.resize(random() % (numbers.size() + 1));
    const auto bytes = std::as_bytes(std::span(numbers));
    try {
      if (i % 2 == 0)
        Step::of(bytes);
      else
        Result::of(bytes);
    } catch (const Refused&) {
    }
  }
  EXPECT_THROW(Step::of(std::as_bytes(std::span(good)).first(9)), Refused);
  EXPECT_THROW(Step::of(meta_of({1, 1, 2, 0, 0, 0, 0, 0})), Refused);  // keeps more than it has
}

TEST(StageStep, ErrorsKeepTheirTypes) {
  const auto thrown = [](const std::exception& error) { throw_failure(failure_of(error), "stage 1"); };
  EXPECT_THROW(thrown(ExecutionError("index")), ExecutionError);
  EXPECT_THROW(thrown(OutOfMemory("none")), OutOfMemory);
  EXPECT_THROW(thrown(Refused("no")), Refused);
  EXPECT_THROW(thrown(InvalidArgument("no")), InvalidArgument);
  EXPECT_THROW(thrown(std::runtime_error("what")), Error);
  try {
    thrown(Busy("full"));
  } catch (const Busy& error) {
    EXPECT_STREQ(error.what(), "stage 1: full");
  }
  EXPECT_THROW(throw_failure({}, "stage 1"), Refused);
}

TEST(StageTurns, InTheOrderOfArrival) {
  Turns turns;
  std::vector<int> order;
  std::vector<std::thread> threads;
  {
    const Turns::Turn first(turns);
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const Turns::Turn turn(turns);
        order.push_back(i);
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace graft::stage
