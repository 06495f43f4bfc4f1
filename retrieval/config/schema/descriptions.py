"""One line about each component and argument: from the words below, or from its docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from sluice.retrieval.pipelines.table import WRITERS

# What a language model that writes for a query may cost, whatever it writes.
WRITING: Mapping[str, str] = {
    "tokens": "Tokens of what the model writes, at most; 128 if left out.",
    "cache": "The file of answers (SQLite), so that none is paid for twice; left out, in memory.",
    "budget": "The most tokens of all prompts and answers of the stage; 0: only what is cached.",
    "deadline_ms": "Milliseconds of an answer, after which the query is searched as it is.",
}
# Where a docstring has no sentence that an editor could show alone: by ``type.argument`` first,
# then by the argument alone, which means the same wherever it occurs.
WORDS: Mapping[str, str] = {
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
    # indexes
    "metric": "ip (inner product), cosine, or l2 (negative squared distance).",
    "train_size": "Vectors that FAISS's training sees, at most.",
    "faiss.rescore": "Candidates scored again with full vectors, where they are kept; 0: none.",
    "faiss.params": "Search parameters that every search has, such as {nprobe: 16}.",
    "flat.depth": "Candidates of the first pass that are scored exactly.",
    "inverted.fidelity": "How exactly weights are stored: exact, or a form that takes less memory.",
    "inverted.order": "How documents are arranged inside: input, or by what they share.",
    "inner": "The index that does the searching, {type: ...}.",
    "augmented.augmentation": "document_bias or mips_to_l2, as {type: ...}.",
    "funnel.first": "The index of the first pass, {type: ...}; left out, flat.",
    "funnel.dimensions": "Dimensions of the first pass; left out, all.",
    "funnel.depth": "Candidates of the first pass that are scored exactly.",
    "auto.k": "Hits that the recall is measured at.",
    "auto.target_recall": "The share of the exact best hits that must be found.",
    "document_bias.values": "One number for each document, added to its score.",
    # losses
    "similarity": "auto (the encoder's own), cosine or dot.",
    "negatives": "What a positive is compared with: all documents of the batch, the query's own, "
    "the others' positives (inbatch_pos), or these and its own.",
    "temperature": "Divides the scores: less makes the loss look at the hardest negatives. Left "
    "out, 0.05 for cosine and 1 for dot products.",
    "psl.scale": "Multiplies the scores.",
    "psl.temperature": "Divides the scores.",
    "judge_kl.temperature": "Divides the student's scores, and the judge's unless told otherwise.",
    "average": "Over each query's pairs, over all pairs of the batch, or the sum.",
    "learning_rate": "The learning rate of the loss's own parameters; null: the trainer's.",
    "loss": "The loss inside, {type: ...}.",
    "losses": "The losses, {type: ..., weight: 1.0}.",
    "chunk": "Columns of the score matrix computed at a time, for large batches; null: all.",
    "focal_gamma": "Above 0, queries that are answered already count less.",
    "margin": "The difference below which a pair counts.",
    "qbd.margin": "The margin of the triplet loss.",
    "kl_div.teacher_temperature": "Divides the teacher's scores.",
    "judge_temperature": "Divides the judge's scores; left out, as the student's.",
    "teacher_temperature": "Divides the teacher's logits; left out, 1.",
    "bce.target": "Labels, or a teacher's: sigmoids of its logits, or probabilities.",
    "bixse.target": "Labels, or a teacher's: sigmoids of its logits, or probabilities.",
    "bce.temperature": "Divides the scores.",
    "kl_div.negatives": "own: documents that the teacher scored; others: it scores all pairs of a "
    "batch, of which these count.",
    "alignment.distance": "Of the two vectors: l2 (squared), or cosine.",
    "alignment.sides": "The texts that are aligned: queries, documents, or both.",
    "entries.of": "What makes an entry's vector: the mean of its definitions (queries), or its own "
    "text.",
    "entries.sides": "The texts that are classified: queries, their positives, or both.",
    "entries.temperature": "Divides the cosines.",
    "entries.whitening": "Whether the entries' vectors are whitened: mean 0, covariance 1.",
    "hoc.sides": "The texts whose vectors are told apart among the teacher's.",
    "hoc.temperature": "Divides the cosines; 1 over mu in the paper.",
    "simplex.rounds": "Rounds of k-means that make the classes; 0: the corner that the teacher's "
    "vector is nearest to.",
    "simplex.sides": "The texts that are drawn to the corners.",
    "simplex.temperature": "Divides the cosines.",
    "angle.temperature": "Divides the angles: less makes the loss look at the worst pairs.",
    "cosine_weight": "The weight of the same loss over cosines; 0: none.",
    "target_temperature": "Divides the labels or the teacher's scores.",
    "csr.beta": "The weight of the reconstruction that dead latents make of what codes lose.",
    "csr.gamma": "The weight of the loss over codes.",
    "dse.coefficient": "The weight of the structural term.",
    "dse.head_learning_rate": "The learning rate of the pair head; left out, the trainer's.",
    "info_nce.same_side": "Whether queries, and positives, are compared with each other too.",
    "info_nce.symmetric": "Whether the loss from document to query is averaged in.",
    "info_nce.learnable_temperature": "Whether the temperature is trained too.",
    "misfits.form": "triplet: by distances and a margin; softmax: the query against its misfits.",
    "misfits.weight": "The weight of the misfits' part.",
    "misfits.margin": "How much farther than the query a misfit has to be.",
    "misfits.temperature": "Divides the scores in the softmax.",
    "mixing.mixing_temperature": "Of the softmax that mixes a query's hard negatives.",
    "matryoshka.dims": "The lengths of the prefixes; left out, half as long each time.",
    "matryoshka.weights": "The weights of the prefixes; left out, 1 each.",
    "last_weight": "The weight of the last layer's loss.",
    "prior_weight": "The weight of the earlier layers' losses.",
    "kl_weight": "The weight of the earlier layers' divergence from the last.",
    "compression_weight": "The weight of the compression term of the method ese.",
    "momentum": "How slowly the key encoder follows the trained one.",
    "momentum_queue.symmetric": "Whether document to query is learnt too.",
    "soft_top_k.alpha": "The steepness of the soft top k.",
    "soft_top_k.k": "Documents of a row that count as retrieved, or positives: as many as it has.",
    "lambda_loss.cutoff": "Pairs beyond this place count nothing.",
    "mu": "The weight of NDCG-Loss2 in ndcg_loss2++.",
    "adore.ranks": "columns: the order of live candidates; scores: the order of the scores now.",
    "lambda_distil.ranks": "scores: the order of the scores now; columns: of the columns.",
    "learn_scale": "Whether the scale is trained.",
    "learn_bias": "Whether the bias is trained.",
    "max_grade": "The grade that counts as 1; labels are divided by it.",
    "penalty": "The weight of the penalty.",
    "grl.temperature": "Divides distances or cosines, of the contrast and of the divergence.",
    "grl.distance": "What the contrast compares: l2, minus the distance of unit vectors, or "
    "cosine.",
    "grl.writing": "What is learnt of writing: to prefer a positive to a negative, or supervised, "
    "the positive's tokens.",
    "grl.beta": "Steepness of the preference; left out, 0.1.",
    "grl.writing_weight": "The weight of the writing; 0: none.",
    "grl.agreement_weight": "The weight of the divergence between what is written and what is "
    "near; left out, 1 with writing: preference.",
    "rrra.adapter": "The folder of a fitted adapter; left out, a new one begins.",
    "rrra.head_learning_rate": "The learning rate of the adapter; left out, the trainer's.",
    "rrra.weight": "The power of the adapter's score beside the encoder's: 0, the encoder's order; "
    "null, the adapter's probability alone.",
    "rrra.top": "The documents of a query that count as what the encoder finds in a batch.",
    "adapter_weight": "The weight of the adapter's cross-entropy beside the loss.",
    "dse.hidden": "The width of the pair head.",
    "probability": "The share of each text's tokens that is hidden.",
    "masked_language.keep": "The share of hidden tokens that stay as they are.",
    "masked_language.random": "The share of hidden tokens that become another one.",
    "matryoshka_2d.dims": "The lengths of the prefixes; left out, half as long each time.",
    "layers_per_step": "Earlier layers of a step; null: all.",
    "dims_per_step": "Prefixes of a step; null: all.",
    "kl_temperature": "Divides the logits of the divergence.",
    "distillation": "The weight of the teacher's distribution; 0: none.",
    "distillation_temperature": "Divides the student's scores; left out, 0.05.",
    "distillation_teacher_temperature": "Divides the teacher's scores; left out, as the student's.",
    "momentum_queue.size": "Vectors in the queues; 0: none.",
    "momentum_queue.modes": "The augmentations, one a step in turn: 0 to 3.",
    "momentum_queue.rate": "The share of a text's tokens that an augmentation changes.",
    "qbd.triplet_weight": "The weight of the triplet loss; 0: none.",
    "mixture": "What each head's scores count in the mixture: {dense: 1, sparse: 0.3, tokens: 1}.",
    "three_heads.weights": "What each head's own loss counts: {dense: 1, sparse: 0.1, tokens: 1}.",
    "three_heads.temperature": "Of the softmax by which the mixture teaches the heads.",
    "distil": "Whether the mixture of the heads' scores teaches each of them.",
    "max_norm": "The length that no vector exceeds; left out, the longest one's.",
    "adore.metric_cut": "Places of the list that count; null: all.",
    "lambda_distil.metric_cut": "Places of the list that count; null: all.",
    # examples
    "clicks.file": "The click log, or several: query_id or query, doc_id, position, clicked, or "
    "clicks and impressions, and session where the model needs it.",
    "clicks.model": "What explains the clicks beside relevance: nothing (counts), the position "
    "(pbm), or users who go down the page (cascade, dbn).",
    "clicks.propensities": "The chances that users look at positions 1, 2, ..., or a file of "
    "`sluice teach clicks`; left out, estimated.",
    "clicks.positives": "Each clicked document an example, weighed by inverse propensity, or "
    "together with their query's others, labelled by relevance.",
    "clicks.grades": "Labels are whole numbers from 0 to this, relevance being their gain; left "
    "out, the relevance from 0 to 1.",
    "clicks.smoothing": "Impressions of mean relevance that a document has beside its own; left "
    "out, 1.",
    "clicks.clip": "The least propensity that divides; left out, 0.05.",
    "clicks.per_query": "Negatives of an example, at most: looked at, and never clicked.",
    "clicks.unknown": "Whether rows of queries and documents that the dataset lacks are an error.",
    "corpus.titles": "The share of pairs of a title and the text without it.",
    "corpus.sentences": "The share of pairs of a sentence and the rest of its document.",
    "corpus.crops": "The share of pairs of two spans of words of a document.",
    "corpus.phrases": "The share of pairs of a document's key phrases and the document.",
    "corpus.per_document": "Queries made from each document.",
    "corpus.retriever": "What searches the corpus with every query: a retriever or pipeline by "
    "name, a folder, an inline {encoder, index}.",
    "corpus.consistency": "Keeps pairs whose document is among the first so many hits; with a "
    "retriever 10.",
    "corpus.candidates": "Further hits of each query, with the scores of the list, for losses that "
    "learn from a teacher.",
    "corpus.depth": "Hits that the candidates are drawn from.",
    "corpus.scale": "The candidates' highest score, where the lowest is 0.",
    "file.file": "The file, or several.",
    "file.negative_queries": "Of a row's queries that its positives do not answer, at most so "
    "many, drawn by seed; 0: none.",
    "file.format": "bge, columns, triples, id_triples, scored_triples, tevatron, msmarco, "
    "graded, descriptions; "
    "auto: seen from the first row.",
    "documents": "Documents of the corpus that are used, the first ones; left out, all.",
    "file.per_query": "Negatives of an example, at most.",
    "file.sampling": "Which negatives: top (the first), or random.",
    "file.positives": "Several positives in a row: each an example, or together in one.",
    "file.scores": "Whether scores in the rows are learnt, as a teacher's.",
    "file.max_positive_ratio": "The highest share of the positive's score in the row that a "
    "negative may have; left out, any.",
    "file.margin": "How far a negative's score in the row must be below the positive's.",
    "file.positive_score": "Of several positives, the score that counts for these limits.",
    "quality.labels": "A document's label: its share of the train queries, or any (relevant to "
    "some).",
    "quality.negatives": "Documents that matter less beside each, drawn anew in every epoch.",
    "generated.model": "The language model that writes: a decoder, or an encoder with a decoder.",
    "generated.pairs": "Judgements of the train split that a soft prompt is learnt on, drawn by "
    "seed; 0: none, and no soft prompt.",
    "generated.documents": "Documents that queries are written for, drawn by seed; left out, all.",
    "generated.queries": "Queries written for each document.",
    "generated.consistency": "Keeps a query if BM25 ranks its document among the first so many; "
    "null: keeps all.",
    "generated.judgements": "Whether the pairs are learnt beside the queries; left out, they are.",
    "generated.prompt": "The text around a document, with {text} for it; left out, 'Document: "
    "{text}' and 'Query:' with a soft prompt.",
    "generated.document_length": "Most tokens of a document; left out, as many as the model has "
    "room for, up to 384.",
    "generated.length": "Most tokens of a query.",
    "generated.tokens": "Vectors of the soft prompt; left out, 50.",
    "generated.text": "The text whose embeddings the soft prompt begins as.",
    "generated.shots": "Example pairs shown before each document; left out, 2.",
    "generated.choices": "Groups of examples of which the held-out pairs choose one; left out, 10.",
    "generated.epochs": "Most epochs over the pairs; left out, 100.",
    "generated.learning_rate": "Of the soft prompt, falling linearly; left out, 0.03.",
    "generated.batch": "Pairs in a step; left out, 1.",
    "generated.patience": "Epochs without a lower loss of the held-out pairs before it ends; left "
    "out, 5.",
    "generated.device": "Where the language model runs: cpu, cuda, ...",
    "ict.keep": "The chance that the sentence stays in its document.",
    "per_document": "Sentences of each document that become queries.",
    "fields.query": "The field that is the query, or several, joined: title, text, metadata keys.",
    "fields.positive": "The field that is the document, or several, joined.",
    "fields.least": "Documents that an item of the positive must have beside the same query, 1.",
    "indexing.words": "One text of so many first words of each document, 64; 0: none.",
    "indexing.sentences": "Sentences of more than ten words of each document, at most so many.",
    "indexing.paragraphs": "The first three sentences of each document, and other three, at most.",
    "indexing.mentions": "Windows around so many mentions of other documents, which ask for these.",
    "indexing.phrases": "Queries of key phrases of each document.",
    "indexing.queries": "Files of queries for documents, as `sluice teach generate` writes them.",
    "indexing.judgements": "Whether the queries of the train split are learnt too.",
    "wlp.links": "The metadata key that lists linked ids; left out, a document links to those that "
    "its text names by id or title.",
    "bodies": "Whether pairs of title and body are added.",
    # mined negatives
    "mined.per_query": "Negatives of each query.",
    "max_positive_ratio": "The highest share of the positive's score that a negative may have; "
    "null: any.",
    "mined.margin": "How far a negative's score must be below the positive's.",
    "max_score": "The highest score of a negative.",
    "min_score": "The lowest score of a negative.",
    "range_min": "The first rank, from 0, that negatives are taken from.",
    "range_max": "The rank before which negatives are taken.",
    "mined.sampling": "top (the first), random, or cyclic (every step-th).",
    "adaptive_margin": "[a, b]: a negative's score is below s - (a + b |s|), s the positive's.",
    "judge_gamma": "How strongly a likely false negative, by the judge's probability, is put back.",
    "judge_margin": "How far the judge's score must be below the positive's.",
    "judge_depth": "Candidates that the judge scores.",
    "mined.shares": "The part of the negatives that each retriever gives, in their order.",
    "mined.step": "Of sampling: cyclic.",
    "consistency": "Drops pairs whose positive is not among the first so many hits.",
    "mined.positives": "Of several positives, the score that counts: lowest, mean or highest.",
    # databases
    "dsn": "postgresql://user@host:port/database without a password, which PGPASSWORD or ~/.pgpass "
    "has; left out, PGHOST, PGDATABASE and PGUSER say it.",
    "pgvector.table": "What the names of its tables begin with.",
    "pgvector.column": "vector, halfvec (float16) or sparsevec; left out, as the vectors are.",
    "pgvector.method": "exact, or hnsw: a graph, approximate and faster for many documents.",
    "pgvector.m": "Links of a vector in each layer of the graph, 16.",
    "pgvector.ef_construction": "Candidates for the links of a new vector, 64.",
    "pgvector.prune": "Keeps so many of a sparse vector's weights, the largest; left out, too many "
    "(16,000; with hnsw 1,000) are an error.",
    # Qdrant
    "qdrant.path": "The folder of Qdrant's engine in this process, open in one at a time; or url.",
    "qdrant.url": "A Qdrant server: https, or http of this machine; its key is in QDRANT_API_KEY.",
    "qdrant.collection": "What the names of its collections begin with.",
    "qdrant.method": "exact, or hnsw: a graph, approximate and faster for many documents.",
    "qdrant.m": "Links of a vector in the graph, 16.",
    "qdrant.ef_construct": "Candidates for the links of a new vector, 100.",
    # graphs
    "query_graph.neighbours": "Links of a document's own; as many others lead to it at most.",
    "query_graph.depth": "Hits of each training query that are linked with each other.",
    "query_graph.build": "How the nearest documents are found: exact, or faiss, faster for many.",
    "query_graph.entries": "Documents that a walk begins with, those that training queries find.",
    "query_graph.candidates": "The best documents so far whose links a walk scores, one by one.",
    "query_graph.budget": "Documents that a walk may score, at most; left out, all it reaches.",
    "graph.mode": "graph walks from document to document; exhaustive scores all of them.",
    "graph.neighbours": "Documents that each is linked with, the nearest: 32.",
    "graph.build": "How neighbours are found: exact, or faiss, faster for many documents.",
    "graph.entries": "Random documents that a walk begins with; left out, a twentieth of all.",
    "graph.candidates": "Of the documents scored last, how many are followed; left out, 10 to 50.",
    "graph.iterations": "Steps of a walk, at most: 16.",
    "graph.budget": "Documents that a walk may score, at most; left out, all it reaches.",
    "graph.early_stop": "Ends a walk where a step finds none of the best k.",
    # learnt rankers
    "sigma": "The steepness of the pairs' logistic loss.",
    "l2": "The penalty of squared weights.",
    # functions of pipelines
    "abstain.fitted": "A file that `sluice fit no-answer` wrote.",
    "abstain.threshold": "The least confidence of a query that gets hits.",
    "abstain.kind": "What confidence is: energy, top, margin, softmax or deviation of the scores, "
    "or the variance that a Gaussian encoder gives the query.",
    "abstain.width": "The first scores that confidence looks at, 25.",
    "abstain.temperature": "What the scores of softmax and energy are divided by, 1.",
    **{
        f"{kind}.weights": "One weight for each part; left out, all alike."
        for kind in ("fused", "rank_biased", "rrf", "weighted")
    },
    "normalise": "How scores are made comparable: min-max, z-score, ...",
    "minimum": "The least score of theoretical-min: a number, or one for each part.",
    "fitted": "A file that `sluice fit` wrote; it has the settings.",
    "fitted.measure": "What the choice maximises on the dev queries.",
    "fitted.depth": "Hits of each part that are fused (all), or the most that are reranked (50).",
    "fitted.queries": "Dev queries that are used, at most: 1,000 of a fusion, 300 of a reranker.",
    "fitted.methods": "The fusions that are tried; weighted alone, unless given.",
    "rank_constant": "The constant of 1 / (rank_constant + rank): 60.",
    "phi": "The persistence of rank-biased centroids.",
    "fused.gamma": "The exponent of comb_gmnz.",
    "fused.sigma": "The sigma of logn_isr.",
    "fused.method": "The fusion: rrf, weighted, or any other of `sluice fit fusion`.",
    "cached.file": "The file of scores.",
    "max_bytes": "The size that the file may reach.",
    "cached.name": "Identifies a scorer without a fingerprint.",
    "ltr.model": "The folder that `sluice fit ranker` wrote.",
    "pair_head.model": "The model whose head scores pairs.",
    "normalised.fitted": "The file of a saved normaliser, instead of a bank.",
    "bank": "The dataset whose train queries hubs are estimated on.",
    "normalised.mode": "dynamic: only queries whose first hit is a hub; static: all.",
    "normalised.beta": "How sharply hubs differ from other documents.",
    "normalised.documents": "Documents that normalisers are made for; 0: those seen.",
    "normalised.depth": "Hits that are reordered.",
    "evidence.sharpness": "1 joins by products, larger values ever more by the best part (MaxP).",
    "evidence.temperature": "How many points of score make the odds e times as large.",
    "max_sim.retriever": "Instead of a model: a retriever, whose stored token vectors are "
    "compared; only queries are encoded.",
    "prf.kind": "average of the query and the first documents, or rocchio.",
    "prf.alpha": "The query's weight in rocchio.",
    "prf.beta": "The first documents' weight in rocchio.",
    "prf.gamma": "The last documents' weight in rocchio.",
    "prf.bottom": "Documents at the end of the list that count against.",
    "prf.k": "Documents at the head of the list that are taken as relevant.",
    "prf.depth": "Hits that the last documents are taken from.",
    "rm3.documents": "Documents at the head of the list that are taken as relevant.",
    "rm3.terms": "Terms of these documents that the query gets.",
    "original_weight": "The weight of the query's own terms, from 0 to 1.",
    "max_document_share": "Terms in a larger share of the documents are left out.",
    "summarised.words": "Words of a summary, at most.",
    "decay": "What a term counts that is covered already: 0 nothing, 1 as before.",
    "how": "A document's score: of its best passage (max), the first, the sum or the mean.",
    "length": "Tokens of a passage, at most.",
    "overlap": "Tokens that neighbours share.",
    "late": "Encodes passages by token states that saw the document around them (late chunking).",
    "rm3.by": "What a document counts: its score, or all equal.",
    **{f"{name}.{key}": text for name in WRITERS for key, text in WRITING.items()},
    "hyde.prompt": "A prompt with {query}, or a list of such, each of which writes a document.",
    "query2doc.prompt": "The prompt, with {query}.",
    "iter_retgen.prompt": "The prompt, with {query} and {documents}.",
    "structured.prompt": "The prompt, with {query} and {fields}, which asks for a JSON object.",
    "synonyms.file": "Lines such as 'tv, television' (each for the others), 'tv => television'.",
    "synonyms.rules": "Such lines themselves, instead of a file.",
    "spelling.edits": "Letters of a word that may differ, 1 or 2; 1 in words of three to five.",
    "spelling.query_weight": "What the query as it stands counts; the corrected one counts 1.",
    "spelling.language": "The language of the texts, as of BM25.",
    "key_phrases.phrases": "Phrases that are searched by, at most.",
    "key_phrases.weight": "What all phrases count together; the query counts query_weight.",
    "key_phrases.query_weight": "What the query itself counts; 0: the phrases alone.",
    "key_phrases.common": "Words in a larger share of the documents are in no phrase.",
    "key_phrases.language": "The language of the texts, as of BM25.",
    "hyde.samples": "Documents written for each prompt; several are drawn, each time the same.",
    "hyde.temperature": "How freely several are drawn, above 0 and at most 2; left out, 0.7.",
    "synonyms.weight": "What all synonyms of a phrase count together; the query counts 1.",
    "query_weight": "What the query itself counts; each document written for it counts 1.",
    "repeats": "How often the query stands before the passage; left out, 5 times where words are "
    "counted, else once.",
    "rounds": "How many drafts are written, each followed by a search; 0: none.",
    "iter_retgen.depth": "Documents that a draft is written from.",
}  # fmt: skip
# What a component is, where its docstring is written for programmers; by its name, or by its class
# where an encoder and a reranker have one name.
SUMMARIES: Mapping[str, str] = {
    "generative": "A language model of transformers that judges, compares or orders candidates.",
    "http": "A language model behind an HTTP endpoint that judges, compares or orders candidates.",
    "sluice.encoders.dense.remote.encoder:HttpEncoder": "Dense vectors from a server of OpenAI's, "
    "Cohere's or TEI's shape.",
    "http_rerank": "Scores from a server's /rerank, of Cohere's or TEI's shape.",
    "precomputed": "Dense vectors that another program made; queries that it encoded too.",
    "dense": "A transformer with a pooling: one dense vector for each text.",
    "static": "A table of token vectors and no network: the mean of a text's is its vector.",
    "concepts": "Weights of concepts that a file names, served by an inverted index.",
    "csr": "Sparse codes of dense vectors by a sparse autoencoder (CSR).",
    "experts": "A dense encoder with feed-forward layers for each dataset, or chosen by a gate.",
    "gaussian": "A mean and a variance of each text, ranked by Kullback-Leibler divergence.",
    "pseudo_queries": "Documents are centroids of their own tokens, which queries attend to.",
    "hypencoder": "Documents are vectors, a query a small network that scores them.",
    "seal": "A language model writes n-grams of the documents for a query (SEAL).",
    "dsi": "A language model writes the identifiers of documents for a query (DSI).",
    "splade": "SPLADE: weights of the vocabulary's terms, from a masked language model.",
    "pgvector": "Dense or sparse vectors in PostgreSQL with pgvector, exact or by a graph.",
    "qdrant": "Dense or sparse vectors in Qdrant, exact or by a graph.",
    "tokens": "Late interaction (ColBERT): a vector for each token, scored by MaxSim.",
    "three_heads": "One head of a model with three (BGE-M3); heads share the passes through it.",
    "towers": "Two encoders with weights of their own, for queries and for documents.",
    "cross_encoder": "Reads query and document together and returns one score.",
    "listwise": "A language model that writes the order of a whole list (full ranking).",
    "true_false": "An encoder with a decoder, such as a T5, that answers true or false (monoT5).",
    "bfs": "Titles or first sentences as queries, their bodies as documents.",
    "clicks": "What users clicked, freed of the position's bias by a click model.",
    "corpus": "Pairs of several kinds from the corpus, filtered and taught by a search of it.",
    "wlp": "First sentences as queries, documents linked with theirs as documents.",
    "fields": "Some fields of a document as the query, others as the document.",
    "file": "Examples from files of the usual formats.",
    "generated": "Queries of a language model with a soft prompt learnt on few judgements (SPTAR).",
    "ict": "Inverse cloze: a sentence of a document as the query, the rest as the document.",
    "indexing": "Texts of every document and queries for it, to learn its identifier from.",
    "texts": "Every document of the corpus, for losses that learn from texts alone.",
    "mined": "Hard negatives from ranked lists, found before training.",
    "abstain": "A stage without hits for queries that nothing here seems to answer.",
    "rrf": "Sums of reciprocal ranks; a | b is rrf(a, b).",
    "weighted": "Weighted sums of normalised scores.",
    "rank_biased": "Rank-biased centroids.",
    "comb_sum": "Sums of normalised scores of the lists that have the document.",
    "comb_mnz": "These sums times the number of those lists.",
    "fused": "Any other fusion, by method.",
    "fitted": "A fusion, or a reranker, whose settings are chosen on the dev queries.",
    "ltr": "A learnt ranker over the scores and ranks of several parts.",
    "normalised": "A retriever whose scores are corrected for hubs.",
    "max_sim": "Late interaction: each query token's best match among a document's tokens, summed.",
    "cached": "A reranker that keeps its scores in a file.",
    "summarised": "A reranker that reads a summary of each document, made for the query.",
}
LONGEST = 320  # characters of a description


def described(kind: str, argument: str, docs: Sequence[str]) -> str:
    """Return one line about an argument of the component ``kind``; empty if nothing is known.

    ``docs`` are the docstrings of its class and of its factory. A sentence that begins with the
    argument says best what it is.
    """
    own = list(_sentences(docs, argument))
    about = [sentence for sentence in own if sentence.startswith(f"`{argument}")]
    known = WORDS.get(f"{kind}.{argument}", "")
    text = known or WORDS.get(argument, "") or next(iter(about), "") or next(iter(own), "")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _sentences(docs: Sequence[str], argument: str) -> Iterator[str]:
    """Yield the sentences of docstrings that name an argument, code marked as in Markdown."""
    for doc in docs:
        for paragraph in doc.split("\n\n"):
            text = " ".join(paragraph.split()).replace("``", "`")
            for sentence in re.split(r"(?<=[.;]) (?=[A-Z`(])", text):
                if re.search(rf"`{argument}[`:]", sentence):
                    yield sentence.rstrip(";") + ("." if sentence[-1] not in ".;" else "")
