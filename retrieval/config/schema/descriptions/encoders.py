"""A line about each argument of encoders, rerankers and tunings."""

from __future__ import annotations

from collections.abc import Mapping

ENCODERS: Mapping[str, str] = {
    # encoders and rerankers
    "projection": "Adds a new linear layer to so many dimensions, or several: {dim, layers, "
    "hidden, activation, residual}.",
    "layers": "Keeps only so many of the model's first layers.",
    "top_layers": "Pools so many of the last layers, side by side: 4 in DSE.",
    "model": "A folder, a hub id, a short name such as all-MiniLM-L6-v2, or a model under `train`.",
    "precomputed.model": "The folder of vectors that another program made.",
    "vocabulary.model": "The folder of a saved vocabulary encoder.",
    "towers.model": "A saved folder of two towers, instead of query and document.",
    "towers.query": "The query encoder, {type: dense, static or splade, model: ...}.",
    "towers.document": "The document encoder, {type: dense, static or splade, model: ...}.",
    "towers.freeze": "The tower that is not trained.",
    "experts.experts": "Datasets that get an expert each, or a number, among which a gate chooses.",
    "experts.expert": "The one to search with, by its dataset's name, or mean.",
    "concepts.vocabulary": "A text file that names a concept a line.",
    "concepts.read": "What the head sees: the text's vector, or the states of its tokens.",
    "concepts.scale": "What cosines with names are multiplied by at the start, 20.",
    "concepts.threshold": "The cosine with its name above which a text has a concept.",
    "listwise.prompt": "What the model reads, with {query} and {documents}, and perhaps {count}.",
    "listwise.window": "Documents in one prompt; 0, the default, is all.",
    "listwise.step": "Places that the window moves each time; left out, half of it.",
    "listwise.passes": "How often the windows go over the list, 1.",
    "listwise.max_length": "The most tokens of a prompt with its texts and the answer.",
    "listwise.document_length": "The most tokens of a text; left out, as many as fit.",
    "true_false.prompt": "The prompt, with {document} and perhaps {query}; left out, monoT5's, or "
    "QualT5's without a query.",
    "true_false.answers": "The two words, the one for relevant first; left out, true and false.",
    "true_false.max_length": "The most tokens of a prompt with its texts.",
    "csr.top_k": "The most latents of a text; left out, as the model's folder says.",
    "csr.normalize": "Scales codes to length 1, so that the score is the cosine; left out, as the "
    "model's folder says.",
    "aggregate": "What a document scores as: max, its best passage; first, the first one, "
    "which alone is encoded; mean, the mean of its passages' vectors.",
    "headings": "Whether passages end at headings of Markdown: each section is cut on its "
    "own.",
    "expert_layers": "The layers that have experts, from 1; left out, all.",
    "gate_learns": "Whether the gate is trained (true), or stays as it was drawn.",
    "variance_token": "The token before every text that the variance is made of; empty: the pooled "
    "state. Left out, [unused0], or [VAR].",
    "start_variance": "The variance that training starts from; left out, 0.1 for means of length "
    "1, else 1.",
    "variance_floor": "The least variance, 1e-4.",
    "gaussian.beta": "How sharply the softplus bends that makes variances of numbers, 1.",
    "gaussian.normalize": "Scales means to length 1; left out, as the dense encoder does.",
    "gaussian.projection": "Adds a new linear layer for the means, to so many dimensions, or "
    "several: {dim, layers, hidden, activation, residual}.",
    "pseudo_queries.centroids": "The most vectors of a document, 8.",
    "pseudo_queries.rounds": "Rounds of k-means at most, 20; 5 in training.",
    "sharpness": "Multiplies queries: the larger, the more a document's best vector alone counts. "
    "20 for vectors of length 1, else 1.",
    "pseudo_queries.pooling": "How a query's token vectors become one; left out, as the model's "
    "folder says.",
    "pseudo_queries.normalize": "Scales vectors to length 1, queries then to sharpness; left out, "
    "as the dense encoder does.",
    "pseudo_queries.inner": "The index of the first step: any dense one of inner products, or "
    "tokens; left out, flat.",
    "pseudo_queries.mode": "two_step scores the best by their nearest vector; exhaustive all.",
    "pseudo_queries.factor": "Candidates of the first step for each hit: 4, and 100 at least.",
    "seal.length": "The most tokens of an n-gram, 10.",
    "seal.prompt": "What the model reads, with {query} where the query goes.",
    "dsi.ids": "What identifiers are: atomic (a token each), semantic (paths through clusters), "
    "string (the document's id; the usual) or title.",
    "dsi.branches": "Clusters in a cluster of semantic identifiers, 10.",
    "dsi.ids_by": "The encoder whose vectors are clustered, such as {type: dense, model: ...}; for "
    "training alone.",
    "dsi.length": "The most tokens of an identifier, 32.",
    "dsi.prompt": "What the model reads, with {query} where the query goes.",
    "fm.candidates": "Documents that are read and scored whole, 1500, or as many as asked for.",
    "rankings.importance": "How much more the numbers of the first ranks weigh; 0: nothing, 1.",
    "spans.length": "Tokens of a span, 10.",
    "spans.temperature": "The lower, the rather spans that share trigrams with the query, 0.1.",
    "tokens.dim": "Keeps only so many of the vectors' first dimensions; of another "
    "encoder, the dimensions of its new projection (128).",
    "tokens.projection": "Adds a new linear layer to so many dimensions, or several: {dim, layers, "
    "hidden, activation, residual}; false: none.",
    "query_marker": "The token before every query; empty for none. Left out, the model's own, or "
    "[unused0], or [Q].",
    "document_marker": "The token before every document; empty for none. Left out, the model's "
    "own, or [unused1], or [D].",
    "expand_queries": "Fills queries up with mask tokens, which have vectors too: true (to "
    "query_length), false, or to so many tokens.",
    "attend_to_expansion": "Whether the tokens of a query see the mask tokens that it is filled "
    "up with.",
    "skip_words": "Tokens of documents that have no vector; left out, punctuation.",
    "pool_factor": "Divides the number of a document's vectors: like tokens share one. 2 costs "
    "next to nothing, 1 pools none.",
    "protected_tokens": "The first tokens of a document that are not pooled.",
    "three_heads.head": "dense, sparse (term weights) or tokens; left out, the one the folder was "
    "saved with.",
    "tokens.seed": "The seed of a new projection, and of new markers (13).",
    "three_heads.seed": "The seed of the heads that dim draws (13).",
    "three_heads.dim": "Draws new heads for a model without any: dimensions of its token vectors.",
    "pooling": "How token vectors become one; left out, as the model's folder says.",
    "dense.pooling": "How token vectors become one, or several side by side, such as [cls, mean]; "
    "left out, as the model's folder says.",
    "splade.pooling": "max (SPLADE v2, the default) or sum (v1), over the tokens of a text.",
    "normalize": "Scales vectors to unit length, so that the score is the cosine.",
    "dim": "Keeps only so many of the vectors' first dimensions.",
    "attention": "causal or bidirectional: whether a decoder's tokens see those after them.",
    "append_eos": "Whether every text ends with the end-of-text token, whose state pooling: last "
    "takes; left out, as the tokenizer does.",
    "few_shot": "Answered examples {query, document} that are put before a query.",
    "instruction": "What a query is for; it fills {task} of the prompts.",
    "query_prompt": "Text before every query, such as 'query: ' for E5.",
    "document_prompt": "Text before every document, such as 'passage: ' for E5.",
    "query_length": "Tokens of a query that are read; the rest is cut.",
    "document_length": "Tokens of a document that are read; the rest is cut.",
    "max_length": "Tokens of a query and a document together that are read; the rest is cut.",
    "head": "classifier, or similarity: the texts' states are compared, which is the "
    "better start from a sentence encoder.",
    "device": "auto (a GPU if there is one), cpu, cuda, cuda:1, mps.",
    "dtype": "The arithmetic: float32, bfloat16 (faster, less exact), or auto (what suits the "
    "hardware).",
    "weights": "The bits of the large matrices: float32, int8 (a quarter of the memory), or int4 "
    "(about a sixth, less exact); left out, as the model's folder says.",
    "batch_tokens": "Tokens encoded together; less takes less memory. Left out, chosen.",
    "backend": "torch, onnx or openvino; the latter two run a graph of `sluice model export`.",
    "backend_file": "The graph's file in the model's folder, for onnx and openvino.",
    "seed": "The seed of what is drawn.",
    "splade.activation": "What makes a term's logit a weight: log1p_relu, or relu.",
    "query_model": "shared: queries by the same network; bow or idf: by a table, without one.",
    "lexical": "Keeps only a text's own tokens: none, query, document or both.",
    "prune_below": "Drops a document's terms with a weight below this.",
    "prune_ratio": "Drops a document's terms below this share of its largest weight.",
    "prune_quantile": "Drops this share of each term's postings, the lightest.",
    "query_top_k": "Keeps a query's so many heaviest terms.",
    "document_top_k": "Keeps a document's so many heaviest terms.",
    "train_idf": "Whether the idf table of query_model: idf is trained too.",
    "term_frequency": "Weighs a document's terms by how often they occur and by its length, as "
    "BM25 does: true, or {k1, b, length}.",
    "idf_learning_rate": "The learning rate of the idf table.",
    "bm25.k1": "How much repetitions of a term count: 0 not at all.",
    "bm25.b": "How much long documents are discounted: 0 not at all, 1 in full.",
    "bm25.language": "The language of stemming and stop words: en, de, fr, ...",
    "bm25.fields": "Weights of title and text as fields of their own: {title: 2.0, text: 1.0}.",
    # language models as rerankers
    "url": "The base of an OpenAI-compatible endpoint, such as https://host/v1.",
    "http_rerank.url": "The server's base, such as https://api.cohere.com/v2.",
    "api_key_env": "The environment variable that has the endpoint's key.",
    "api_key_file": "The file that has the endpoint's key, in place of a variable.",
    "api": "The shape of the server's requests: openai, cohere or tei (text-embeddings-inference).",
    "http_rerank.api": "The shape of the server's requests: cohere (also Jina, vLLM) or tei.",
    "http.dim": "Asks the server for vectors of so many dimensions; left out, its own.",
    "max_characters": "Texts beyond so many characters are cut before they are sent.",
    "http.model": "The name that the server knows the model by; api tei takes none.",
    "http_rerank.model": "The name that the server knows the model by; api tei takes none.",
    "http.batch_size": "Texts of a request, at most.",
    "http_rerank.batch_size": "Texts of a request, at most.",
    "requests_per_minute": "Requests begin so far apart; left out, at once.",
    "http.price": "What a million tokens cost, by which the cost is counted.",
    "http_rerank.price": "What a thousand searches cost, by which the cost is counted.",
    "logprobs": "Whether the endpoint returns probabilities of tokens.",
    "context_length": "Tokens of a prompt that the model reads.",
    "concurrency": "Requests at the same time.",
    "timeout_s": "Seconds until a request counts as failed.",
    "retries": "How often a failed request is repeated.",
    "backoff_s": "Seconds before the first repetition; each next one waits twice as long.",
    "body": "Further keys of each request.",
    "chat": "Whether prompts are put into the model's chat form; left out, if it has one.",
    "style": "How candidates are judged: yes_no, graded, logit, pairwise or listwise.",
    "prompt": "The prompt, with {query} and {document} or the style's own places.",
    "answers": "The answers whose probabilities count.",
    "grades": "Grades of the style graded, from 0.",
    "generative.depth": "Candidates that the style pairwise compares.",
    "http.depth": "Candidates that the style pairwise compares.",
    "opponents": "Candidates that each is compared with, in the style pairwise.",
    "window": "Candidates in one prompt of the style listwise; 0: all.",
    "step": "Places that the window of the style listwise moves each time.",
    "passes": "How often the style listwise goes through the list.",
    # tuning
    "variant": "Whether the path joins blocks after (S), beside (P), or by a share (G).",
    "inside": "Whether there are adapters inside the blocks too.",
    "reduction": "The adapters have the hidden size divided by this.",
    "places": "Where adapters stand: attention, mlp, or both.",
    "rank": "The rank of the added matrices: more learns more, with more parameters.",
    "lora.alpha": "The added matrices count alpha / rank.",
}  # fmt: skip
