// Runs every registered test, or those whose name contains the first argument, and says between which kernels it could choose.
// Exit status 1 when one fails.
#include "kernels/kernels.h"
#include "tests/check.h"

namespace test {
std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
}  // namespace test

int main(int argc, char** argv) {
  int failed = 0, ran = 0;
  std::printf("kernels:");
  for (const sapwood::KernelTable* table : sapwood::supported_kernels()) std::printf(" %s", table->name);
  std::printf("\n");
  for (const auto& c : test::cases()) {
    if (argc > 1 && std::string(c.name).find(argv[1]) == std::string::npos) continue;
    ran++;
    try {
      c.run();
      std::printf("ok      %s\n", c.name);
    } catch (const std::exception& error) {
      failed++;
      std::printf("FAILED  %s: %s\n", c.name, error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d of %d passed\n", ran - failed, ran);
  return failed != 0 || ran == 0;
}
