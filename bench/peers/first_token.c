/* llama.cpp from nothing to its first token: the counterpart of bench/first_token.cpp, with llama.cpp's defaults.
   usage: first_token MODEL.gguf TOKENS THREADS CONTEXT [STEPS] */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "llama.h"

static void quiet(enum ggml_log_level level, const char *text, void *data) {
  (void)level, (void)text, (void)data;
}

static llama_token best(const float *logits, int32_t count) {
  llama_token found = 0;
  for (int32_t i = 1; i < count; ++i)
    if (logits[i] > logits[found]) found = i;
  return found;
}

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  static llama_token tokens[1 << 16];
  int32_t count = 0;
  FILE *file = fopen(argv[2], "rb");
  if (!file) return 1;
  for (int64_t token; count < (1 << 16) && fread(&token, sizeof token, 1, file) == 1;)
    tokens[count++] = (llama_token)token;
  fclose(file);
  llama_log_set(quiet, NULL);
  llama_backend_init();
  struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return 1;
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = (uint32_t)atoi(argv[4]);
  params.n_threads = params.n_threads_batch = atoi(argv[3]);
  struct llama_context *context = llama_init_from_model(model, params);
  if (!context) return 1;
  const int32_t width = llama_vocab_n_tokens(llama_model_get_vocab(model));
  if (llama_decode(context, llama_batch_get_one(tokens, count)) != 0) return 1;
  const llama_token first = best(llama_get_logits_ith(context, -1), width);
  llama_token token = first;
  for (int i = argc > 5 ? atoi(argv[5]) : 0; i > 0; --i) {
    if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0) return 1;
    token = best(llama_get_logits_ith(context, -1), width);
  }
  printf("%d\n", first);
  llama_free(context);
  llama_model_free(model);
  return 0;
}
