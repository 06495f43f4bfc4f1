"""A line about each argument of losses, examples, mined negatives and learnt rankers."""

from __future__ import annotations

from collections.abc import Mapping

TRAINING: Mapping[str, str] = {
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
    "quality.negatives": "Documents that matter less beside each, drawn again in every epoch.",
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
    # learnt rankers
    "sigma": "The steepness of the pairs' logistic loss.",
    "l2": "The penalty of squared weights.",
}  # fmt: skip
