/** Generates content whole and in a stream. The environment names `SLUICE_KEY` and `SLUICE_URL`; the responses go to stdout as JSON. */
import { GoogleGenAI } from '@google/genai';

const { SLUICE_KEY: apiKey, SLUICE_URL: baseUrl } = process.env;
const { models } = new GoogleGenAI({ apiKey, vertexai: false, httpOptions: { baseUrl } });
const call = {
  model: 'gemini-3-flash',
  contents: 'Where does water go?',
  config: { maxOutputTokens: 3_000 },
};

const whole = await models.generateContent(call);
const streamed = { text: '', total: 0 };
for await (const { text, usageMetadata } of await models.generateContentStream(call)) {
  streamed.text += text ?? '';
  streamed.total = usageMetadata?.totalTokenCount;
}
process.stdout.write(
  JSON.stringify([{ text: whole.text, total: whole.usageMetadata?.totalTokenCount }, streamed]),
);
